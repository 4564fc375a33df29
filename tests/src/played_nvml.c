/* libnvidia-ml.so.1 as a script plays it: GPUs for machines that have none.
 *
 * Every call reads the file that PLAYED_NVML names; a line is one of
 *
 *     gpus NUMBER          so many there are, of which each has all that follows; one unless this says more
 *     base BYTES           in use by nobody
 *     process PID BYTES    listed, and in use, as long as that process exists
 *     action NUMBER        the recovery action; none means that the driver is too old to know
 *     xid NUMBER [GPU]     delivered once, in the order of the lines, of the first GPU or that one
 *     wedged               calls block while this line is there
 *
 * Numbers and layouts are nvml.h's. Only what the supervisor asks for is here: a symbol that is
 * missing is an answer too. The file is replaced, never written in place, so it is always whole. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { REMAPPED_PENDING = 144, REMAPPED_FAILURE = 145, RECOVERY_ACTION = 230 };
enum { XID_EVENT = 8, UNSIGNED_INT = 1 };
enum { MOST = 16 };

typedef unsigned long long u64;

struct memory { unsigned version; u64 total, reserved, free, used; };
struct process { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; };
struct event { void *device; u64 type, data; unsigned gpu_instance, compute_instance; };
struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type, result;
    union { double real; unsigned number; u64 wide; } value;
};

struct xid { unsigned number, gpu; };

struct script {
    unsigned gpus;
    u64 base;
    struct process processes[MOST];
    unsigned process_count;
    int action;
    struct xid xids[MOST];
    unsigned xid_count;
    int wedged;
};

static struct script read_script(void) {
    struct script script = {.gpus = 1, .action = -1};
    const char *path = getenv("PLAYED_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[128];
    while (file && fgets(line, sizeof line, file)) {
        struct process process = {0};
        struct xid xid = {0};
        if (sscanf(line, "gpus %u", &script.gpus) == 1) continue;
        if (sscanf(line, "base %llu", &script.base) == 1) continue;
        if (sscanf(line, "action %d", &script.action) == 1) continue;
        if (strncmp(line, "wedged", 6) == 0) script.wedged = 1;
        if (sscanf(line, "xid %u %u", &xid.number, &xid.gpu) >= 1 && script.xid_count < MOST)
            script.xids[script.xid_count++] = xid;
        if (sscanf(line, "process %u %llu", &process.pid, &process.bytes) == 2 &&
            script.process_count < MOST && (kill((pid_t)process.pid, 0) == 0 || errno == EPERM))
            script.processes[script.process_count++] = process;
    }
    if (file) fclose(file);
    return script;
}

static struct script play(void) {
    struct script script = read_script();
    for (; script.wedged; script = read_script()) usleep(5000);
    return script;
}

int nvmlInit_v2(void) { play(); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

static int text(char *to, unsigned length, const char *from) {
    play();
    snprintf(to, length, "%s", from);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *to, unsigned length) { return text(to, length, "580.0"); }
int nvmlDeviceGetName(void *device, char *to, unsigned length) {
    (void)device;
    return text(to, length, "Played GPU");
}

/* A handle is the address of its GPU's place here, an event set that of the GPU it listens to. */
static char gpus[MOST];
static unsigned number_of(void *device) { return (unsigned)((char *)device - gpus); }

int nvmlDeviceGetUUID(void *device, char *to, unsigned length) {
    char uuid[32];
    snprintf(uuid, sizeof uuid, "GPU-%xf0f0f0f-played", number_of(device));
    return text(to, length, uuid);
}

int nvmlDeviceGetCount_v2(unsigned *count) { *count = play().gpus; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= MOST) return INVALID_ARGUMENT;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory) {
    struct script script = play();
    (void)device;
    memory->total = 1ull << 37;
    memory->used = script.base;
    for (unsigned i = 0; i < script.process_count; i++) memory->used += script.processes[i].bytes;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *to) {
    struct script script = play();
    unsigned room = *count;
    (void)device;
    *count = script.process_count;
    if (room < script.process_count) return INSUFFICIENT_SIZE;
    if (to) memcpy(to, script.processes, script.process_count * sizeof *to);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)device, (void)sensor;
    *celsius = 41;
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    (void)device;
    *milliwatts = 112500;
    return SUCCESS;
}
int nvmlDeviceGetEccMode(void *device, int *current, int *pending) {
    (void)device;
    *current = *pending = 1;
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, u64 *count) {
    (void)device, (void)type, (void)counter;
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields) {
    struct script script = play();
    (void)device;
    for (int i = 0; i < count; i++) {
        struct field *field = &fields[i];
        int is_action = field->id == RECOVERY_ACTION;
        int is_remap = field->id == REMAPPED_PENDING || field->id == REMAPPED_FAILURE;
        field->type = UNSIGNED_INT;
        field->value.number = is_action ? (unsigned)script.action : 0;
        field->result = is_remap || (is_action && script.action >= 0) ? SUCCESS : NOT_SUPPORTED;
    }
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) {
    *set = calloc(1, sizeof(void *));
    return SUCCESS;
}
int nvmlEventSetFree(void *set) { free(set); return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, u64 types, void *set) {
    *(void **)set = device;
    return types == XID_EVENT ? SUCCESS : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms) {
    static unsigned delivered[MOST];
    void *device = *(void **)set;
    unsigned gpu = number_of(device);
    for (unsigned waited = 0; waited <= timeout_ms; waited += 5, usleep(5000)) {
        struct script script = play();
        for (unsigned i = 0, seen = 0; i < script.xid_count; i++) {
            if (script.xids[i].gpu != gpu || seen++ < delivered[gpu]) continue;
            delivered[gpu]++;
            event->device = device;
            event->type = XID_EVENT;
            event->data = script.xids[i].number;
            return SUCCESS;
        }
    }
    return TIMEOUT;
}
