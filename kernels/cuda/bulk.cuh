// Bulk copies into shared memory, and the barriers there at which they arrive (PTX: cp.async.bulk,
// mbarrier).
#pragma once
#include "common.cuh"

// A place in shared memory, as these instructions want it. Volatile, or it would be worked out again,
// in thirty cycles, wherever it is used.
typedef uint32_t Shared;
DEVICE Shared shared_address(const void* p) {
    Shared at;
    asm volatile("{\n.reg .u64 wide;\ncvta.to.shared.u64 wide, %1;\ncvt.u32.u64 %0, wide;\n}" : "=r"(at) : "l"(p));
    return at;
}

constexpr int BARRIER_BYTES = 8;
DEVICE void barrier_init(Shared bar, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
DEVICE void barrier_arrive(Shared bar, int arrivals = 1) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// An arrival, where `really`, without a branch: the compiler lets products of a warpgroup stay under way.
DEVICE void barrier_arrive_if(bool really, Shared bar) {
    asm volatile("{\n.reg .pred go;\nsetp.ne.b32 go, %1, 0;\n@go mbarrier.arrive.shared::cluster.b64 _, [%0];\n}"
        ::"r"(bar), "r"(int(really)) : "memory");
}
// An arrival that lets the barrier wait for so many bytes.
DEVICE void barrier_expect(Shared bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(Shared bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}"
        ::"r"(bar), "r"(parity) : "memory");
}
// Whether the barrier's phase has ended, without waiting for it.
DEVICE bool barrier_has_ended(Shared bar, uint32_t parity) {
    uint32_t ended;
    asm volatile(
        "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
        : "=r"(ended) : "r"(bar), "r"(parity) : "memory");
    return ended;
}
// A fence behind which the copy engine sees the barriers.
DEVICE void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}

// One lane of a warp that is whole. The compiler knows that it is one, and lets it ask for copies one behind the
// other; of any other choice it makes a loop over lanes, and tensor cores wait for what it asks for
// (bench/results/cuda.md).
DEVICE bool elect_lane() {
    uint32_t is;
    asm volatile("{\n.reg .pred is;\nelect.sync _|is, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, is;\n}" : "=r"(is));
    return is;
}

// A fence behind which copies and the tensor cores see what this thread has stored in shared memory.
DEVICE void fence_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void copy_bulk(Shared to, const void* from, int bytes, Shared bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
