// State-space layers of Mamba-2 (reference/mamba.rs): what lies between the projections of a layer, as its own translation unit.
//
// A unit is some heads of one group, which share `b` and `c`. Of each block of PAGE positions a unit keeps, in the pages of states
// (states.cuh):
//
//   rows   [PAGE]: inputs of the convolution (x of its heads, b, c), b, updates u = dt x [heads][head_dim], log decays [heads]
//   state  [heads][head_dim][state], at the end of the block
//
// With the state S before a block, a row of the block is
//
//   y[i] = d(-1, i) S c[i] + sum over j <= i of d(j, i) (b[j] . c[i]) u[j] + direct x[i]
//
// where d(j, i) is the product of the decays from j + 1 to i, and the next state d(-1, i) S + sum of d(j, i) u[j] b[j]' for the last
// i. Rows never change, and a sum has the order of its place in the block: a prompt in any chunks and a decode step have the same
// bits.
#include "glu.cuh"
#include "hopper.cuh"
#include "states.cuh"

struct MambaArgs {
    const float* projected;  // [rows, stride]: gates z [heads * head_dim], x of all heads, b and c of all groups, dt [heads]
    const Row* rows;
    const StateRow* state_rows;
    const StateSequence* sequences;
    const float* conv;       // [channels, kernel], the present position last
    const float* conv_bias;  // [channels]
    const float* dt;         // [heads] added to the length of the step
    const float* decay;      // [heads] not positive
    const float* direct;     // [heads]
    const float* norm;       // [heads * head_dim]
    float* mixed;            // [rows, channels], behind the convolution
    float* out;              // [rows, heads * head_dim]
    StatePages states;
    int stride, state, head_dim, heads, groups, kernel;
    int unit_heads;
    float eps;
};
LAYOUT(MambaArgs, 168, AT(projected, 0) AT(rows, 8) AT(state_rows, 16) AT(sequences, 24) AT(conv, 32) AT(conv_bias, 40) AT(dt, 48)
       AT(decay, 56) AT(direct, 64) AT(norm, 72) AT(mixed, 80) AT(out, 88) AT(states, 96) AT(stride, 136) AT(state, 140)
       AT(head_dim, 144) AT(heads, 148) AT(groups, 152) AT(kernel, 156) AT(unit_heads, 160) AT(eps, 164))

// Offsets in a unit's row, and in a projected one.
struct ScanPlaces {
    int x, state, width, channels;
    DEVICE ScanPlaces(const MambaArgs& a)
        : x(a.unit_heads * a.head_dim), state(a.state), width(a.heads * a.head_dim), channels(width + 2 * a.groups * a.state) {}
    DEVICE int b() const { return x + 2 * state; }
    DEVICE int update() const { return b() + state; }
    DEVICE int log_decay() const { return update() + x; }
    DEVICE int floats(const MambaArgs& a) const { return log_decay() + a.unit_heads; }
};

DEVICE float step_length(const MambaArgs& a, const ScanPlaces& p, int row, int head) {
    const float dt = a.projected[int64_t(row) * a.stride + p.width + p.channels + head];
    return softplus(__fadd_rn(dt, a.dt[head]));
}

constexpr int MAMBA_INPUT_THREADS = 128;

// Convolution, bias and SiLU: a thread for each channel of a unit of a row. A channel adds the positions of the convolution from the
// present one backwards, and then its bias. They go to `mixed`; inputs, b, updates and log decays go into the row of the unit. All
// units of a group have its b and c.
extern "C" __global__ void __launch_bounds__(MAMBA_INPUT_THREADS) mamba_inputs(const __grid_constant__ MambaArgs a) {
    launch_dependents();
    grid_dependency_wait();
    const ScanPlaces p(a);
    const int row = blockIdx.x, unit = blockIdx.y, floats = p.floats(a);
    const int group = unit * a.unit_heads / (a.heads / a.groups);
    const int position = a.rows[row].position, slot = position % PAGE;
    const StateRow at = a.state_rows[row];
    float* block = unit_at(a.states, at.pages, unit);
    const int last = min(a.kernel - 1, position);
    const bool sees_before = last > slot && last > at.before;
    const float* before = sees_before ? unit_at(a.states, at.pages - a.states.groups, unit) : block;
    float* own = block + slot * floats;
    for (int c = threadIdx.x; c < p.b(); c += MAMBA_INPUT_THREADS) {
        const int in_group = c - p.x;
        int channel = unit * p.x + c;
        if (in_group >= p.state) channel = p.width + (a.groups + group) * p.state + in_group - p.state;
        else if (in_group >= 0) channel = p.width + group * p.state + in_group;
        const float* weights = a.conv + int64_t(channel) * a.kernel + a.kernel - 1;
        const float* projected = a.projected + int64_t(row) * a.stride + p.width + channel;
        own[c] = *projected;
        float v = 0.0f;
        for (int back = 0; back <= last; back++) {
            float x;
            if (back <= at.before) x = projected[-int64_t(back) * a.stride];
            else if (back <= slot) x = block[(slot - back) * floats + c];
            else x = before[(PAGE + slot - back) * floats + c];
            v = __fmaf_rn(weights[-back], x, v);
        }
        v = silu(__fadd_rn(v, a.conv_bias ? a.conv_bias[channel] : 0.0f));
        a.mixed[int64_t(row) * p.channels + channel] = v;
        if (in_group >= p.state) continue;
        if (in_group >= 0) {
            own[p.b() + in_group] = v;
            continue;
        }
        const int head = unit * a.unit_heads + c / a.head_dim;
        own[p.update() + c] = __fmul_rn(step_length(a, p, row, head), v);
    }
    for (int i = threadIdx.x; i < a.unit_heads; i += MAMBA_INPUT_THREADS) {
        const int head = unit * a.unit_heads + i;
        own[p.log_decay() + i] = __fmul_rn(step_length(a, p, row, head), a.decay[head]);
    }
}

// Columns of a head that a block has, and threads of a column. Thread `part` has values 4 part .. 4 part + 3 of every 32 of the
// state, and every eighth row. The threads' sums are added by a butterfly.
constexpr int SCAN_COLUMNS = 32;
constexpr int SCAN_LANES = 8;
constexpr int SCAN_THREADS = SCAN_COLUMNS * SCAN_LANES;
// Floats behind the rows of b and c in shared memory.
constexpr int SCAN_PAD = 4;
// Floats behind the rows of products.
constexpr int SCAN_PRODUCT_PAD = 1;
// Arrays of a float for each position.
constexpr int SCAN_LISTS = 3;

template <int STATE> struct ScanMemory {
    float b[PAGE][STATE + SCAN_PAD];
    float c[PAGE][STATE + SCAN_PAD];
    float updates[PAGE][SCAN_COLUMNS];
    // d(j, i) (b[j] . c[i]), by i.
    float products[PAGE][PAGE + SCAN_PRODUCT_PAD];
    // d(-1, i), and d(j, PAGE - 1).
    float whole[PAGE];
    float ends[PAGE];
    float log_decays[PAGE];
};
// As the host computes it (device/cuda/mamba.rs).
static_assert(sizeof(ScanMemory<128>) == sizeof(float) * PAGE * (2 * (128 + SCAN_PAD) + SCAN_COLUMNS + PAGE + SCAN_PRODUCT_PAD
                                                                 + SCAN_LISTS));

template <int STATE> struct ScanHead {
    using Memory = ScanMemory<STATE>;
    static constexpr int FOURS = STATE / 4 / SCAN_LANES;
    const MambaArgs& a;
    Memory& m;
    const ScanPlaces p;
    const int parts, head, unit, in_unit, group, part, in_block, column, floats;
    float state[FOURS][4];

    DEVICE ScanHead(const MambaArgs& a, Memory& m)
        : a(a), m(m), p(a), parts((a.head_dim + SCAN_COLUMNS - 1) / SCAN_COLUMNS), head(blockIdx.x / parts % a.heads),
          unit(head / a.unit_heads), in_unit(head % a.unit_heads), group(head / (a.heads / a.groups)),
          part(threadIdx.x % SCAN_LANES), in_block(threadIdx.x / SCAN_LANES),
          column(blockIdx.x % parts * SCAN_COLUMNS + in_block), floats(p.floats(a)) {}

    DEVICE bool has_column() const { return column < a.head_dim; }

    DEVICE float4* state_at(float* block, int four) const {
        float* of_column = block + PAGE * floats + (in_unit * a.head_dim + column) * STATE;
        return reinterpret_cast<float4*>(of_column + 4 * (SCAN_LANES * four + part));
    }

    DEVICE void begin(float* block) {
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            const float4 s = block && has_column() ? *state_at(block, f) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            state[f][0] = s.x, state[f][1] = s.y, state[f][2] = s.z, state[f][3] = s.w;
        }
    }

    // What rows need to shared memory: b, updates and decays of all up to `to`, c of those to compute.
    DEVICE void load(const float* block, int64_t row0, int from, int to) {
        for (int i = threadIdx.x; i < to * STATE; i += SCAN_THREADS) {
            const int slot = i / STATE, n = i % STATE;
            m.b[slot][n] = block[slot * floats + p.b() + n];
            const float* mixed = a.mixed + (row0 + slot - from) * p.channels;
            if (slot >= from) m.c[slot][n] = mixed[p.width + (a.groups + group) * STATE + n];
        }
        for (int i = threadIdx.x; i < to * SCAN_COLUMNS; i += SCAN_THREADS) {
            const int slot = i / SCAN_COLUMNS, c = i % SCAN_COLUMNS, of_head = blockIdx.x % parts * SCAN_COLUMNS + c;
            const int at = p.update() + in_unit * a.head_dim + of_head;
            m.updates[slot][c] = of_head < a.head_dim ? block[slot * floats + at] : 0.0f;
        }
        if (threadIdx.x < to) m.log_decays[threadIdx.x] = block[threadIdx.x * floats + p.log_decay() + in_unit];
    }

    // Logarithm of the decay from behind row j to a row, added from the row backwards.
    DEVICE float log_decay(int j, int slot) const {
        float sum = 0.0f;
        for (int k = slot; k > j; k--) sum = __fadd_rn(sum, m.log_decays[k]);
        return sum;
    }

    // Products of b with c, and decays: a thread for each pair of a row and one before it, or the row itself. A product is added
    // from the first value to the last.
    DEVICE void multiply(int from, int to) {
        for (int i = threadIdx.x; i < (to - from) * PAGE; i += SCAN_THREADS) {
            const int slot = from + i / PAGE, j = i % PAGE;
            if (j == 0) m.whole[slot] = expf(log_decay(-1, slot));
            if (j > slot) continue;
            const float decay = expf(log_decay(j, slot));
            if (slot == PAGE - 1) m.ends[j] = decay;
            float sum = 0.0f;
            for (int n = 0; n < STATE; n++) sum = __fmaf_rn(m.b[j][n], m.c[slot][n], sum);
            m.products[slot][j] = __fmul_rn(decay, sum);
        }
    }

    DEVICE float read(const float* by) const {
        float sums[4] = {};
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            const float4 x = *reinterpret_cast<const float4*>(by + 4 * (SCAN_LANES * f + part));
            sums[0] = __fmaf_rn(state[f][0], x.x, sums[0]);
            sums[1] = __fmaf_rn(state[f][1], x.y, sums[1]);
            sums[2] = __fmaf_rn(state[f][2], x.z, sums[2]);
            sums[3] = __fmaf_rn(state[f][3], x.w, sums[3]);
        }
        return __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
    }

    DEVICE void give(int64_t row0, int from, int to) {
        for (int slot = from; slot < to; slot++) {
            float y = __fmul_rn(m.whole[slot], read(m.c[slot]));
            for (int j = part; j <= slot; j += SCAN_LANES) y = __fmaf_rn(m.products[slot][j], m.updates[j][in_block], y);
#pragma unroll
            for (int d = 1; d < SCAN_LANES; d <<= 1) y = __fadd_rn(y, __shfl_xor_sync(~0u, y, d));
            if (part != 0 || !has_column()) continue;
            const int64_t row = row0 + slot - from;
            const float x = a.mixed[row * p.channels + head * a.head_dim + column];
            a.out[row * p.width + head * a.head_dim + column] = __fmaf_rn(a.direct[head], x, y);
        }
    }

    // The state at the end of the block.
    DEVICE void end_block(float* block) {
        const float whole = m.whole[PAGE - 1];
#pragma unroll
        for (int f = 0; f < FOURS; f++)
#pragma unroll
            for (int i = 0; i < 4; i++) state[f][i] = __fmul_rn(whole, state[f][i]);
        for (int j = 0; j < PAGE; j++) {
            const float update = __fmul_rn(m.ends[j], m.updates[j][in_block]);
#pragma unroll
            for (int f = 0; f < FOURS; f++) {
                const float4 b = *reinterpret_cast<const float4*>(&m.b[j][4 * (SCAN_LANES * f + part)]);
                state[f][0] = __fmaf_rn(b.x, update, state[f][0]);
                state[f][1] = __fmaf_rn(b.y, update, state[f][1]);
                state[f][2] = __fmaf_rn(b.z, update, state[f][2]);
                state[f][3] = __fmaf_rn(b.w, update, state[f][3]);
            }
        }
        if (!has_column()) return;
#pragma unroll
        for (int f = 0; f < FOURS; f++) *state_at(block, f) = make_float4(state[f][0], state[f][1], state[f][2], state[f][3]);
    }

    DEVICE void run() {
        const StateSequence sequence = a.sequences[blockIdx.x / (parts * a.heads)];
        const int end = sequence.position0 + sequence.rows;
        begin(sequence.position0 < PAGE ? nullptr : unit_at(a.states, sequence.pages - a.states.groups, unit));
        for (int position = sequence.position0; position < end;) {
            const int from = position % PAGE, to = min(PAGE, from + end - position);
            const int pages = sequence.pages + (position / PAGE - sequence.position0 / PAGE) * a.states.groups;
            const int64_t row0 = sequence.row0 + position - sequence.position0;
            float* block = unit_at(a.states, pages, unit);
            load(block, row0, from, to);
            __syncthreads();
            multiply(from, to);
            __syncthreads();
            give(row0, from, to);
            if (to == PAGE) end_block(block);
            position += to - from;
            __syncthreads();
        }
    }
};

// The recurrence and its outputs: for each sequence and head a block for every SCAN_COLUMNS columns.
template <int STATE> DEVICE void mamba_scan(const MambaArgs& a) {
    extern __shared__ float4 shared[];
    launch_dependents();
    grid_dependency_wait();
    ScanHead<STATE>(a, *reinterpret_cast<ScanMemory<STATE>*>(shared)).run();
}

#define MAMBA_SCAN(STATE)                                              \
    extern "C" __global__ void __launch_bounds__(SCAN_THREADS, 1)      \
    mamba_scan_##STATE(const __grid_constant__ MambaArgs a) { mamba_scan<STATE>(a); }
MAMBA_SCAN(32)
MAMBA_SCAN(64)
MAMBA_SCAN(128)
MAMBA_SCAN(256)

constexpr int MAMBA_NORM_THREADS = 256;

// Outputs times SiLU of their gates, then a norm over each group, in place. The grid is (rows, groups). A thread adds the squares of
// every MAMBA_NORM_THREADS-th column, a warp its lanes' sums by a butterfly, and each thread those of the warps in ascending order.
extern "C" __global__ void __launch_bounds__(MAMBA_NORM_THREADS) mamba_norm(const __grid_constant__ MambaArgs a) {
    __shared__ float sums[MAMBA_NORM_THREADS / 32];
    launch_dependents();
    grid_dependency_wait();
    const int all = a.heads * a.head_dim, width = all / a.groups, first = blockIdx.y * width;
    float* y = a.out + int64_t(blockIdx.x) * all + first;
    const float* gates = a.projected + int64_t(blockIdx.x) * a.stride + first;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += MAMBA_NORM_THREADS) {
        y[i] = __fmul_rn(silu(gates[i]), y[i]);
        sum = __fmaf_rn(y[i], y[i], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = sums[0];
    for (int w = 1; w < MAMBA_NORM_THREADS / 32; w++) sum = __fadd_rn(sum, sums[w]);
    const float inverse = __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, float(width)), a.eps));
    for (int i = threadIdx.x; i < width; i += MAMBA_NORM_THREADS) y[i] = __fmul_rn(__fmul_rn(y[i], inverse), a.norm[first + i]);
}
