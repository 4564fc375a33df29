// Misdeeds, for the fault tests alone: errors that no kernel of ours may ever make, made on purpose.
//
// A translation unit of its own. It is embedded only in a child that was built to fail on command,
// and loaded there only when a fault strikes. One thread of one block is enough: a fault of one
// lane is the end of the whole context. Volatile assembly, so that no compiler finds out that the
// access is senseless and takes it away.
#include "layout.cuh"
#include <stdint.h>

struct MisdeedArgs {
    void* at;
};
LAYOUT(MisdeedArgs, 8, AT(at, 0))

// A wild pointer: nothing is mapped there. CUDA_ERROR_ILLEGAL_ADDRESS, Xid 31.
extern "C" __global__ void illegal_address(const __grid_constant__ MisdeedArgs a) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(a.at), "r"(1) : "memory");
}

// 16 bytes from an address of ours that is no multiple of 16. CUDA_ERROR_MISALIGNED_ADDRESS.
extern "C" __global__ void misaligned(const __grid_constant__ MisdeedArgs a) {
    const char* odd = static_cast<const char*>(a.at) + 4;
    asm volatile(
        "{\n\t.reg .u32 a, b, c, d;\n\tld.volatile.global.v4.u32 {a, b, c, d}, [%0];\n\t}" ::"l"(odd)
        : "memory");
}

// A trap, with which a failed check of a kernel's own ends it.
extern "C" __global__ void trap(const __grid_constant__ MisdeedArgs) { __trap(); }

// A wait for a word that nobody writes.
__device__ volatile uint32_t released;
extern "C" __global__ void endless_kernel(const __grid_constant__ MisdeedArgs) {
    while (released == 0) {
    }
}
