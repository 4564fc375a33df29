// Hopper's own instructions: asynchronous products of a warpgroup (wgmma), clusters of blocks that write
// into each other's shared memory, and programmatic dependent launch, in which a launch begins before the
// one in front of it has ended.
//
// A k16 step of wgmma gives the bits of mma.sync's on an H200, so both may serve one law (matmul.cuh):
// exactness::both_sets_of_kernels_give_the_same_bits compares whole models.
#pragma once
#include "bulk.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA 1
#endif

// Programmatic dependent launch: the next launch may begin; and a wait for the end of the one before.
// Neither has an effect where the launch was not made that way.
DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A tensor in device memory and a box of it that is copied at a time, as the driver describes them
// (cuTensorMapEncodeTiled).
struct alignas(64) TensorMap {
    uint64_t words[16];
};

#ifdef HAS_WGMMA
// The box of a tensor with three dimensions that begins at (0, y, z) (PTX: cp.async.bulk.tensor).
DEVICE void copy_box(Shared to, const TensorMap* map, int y, int z, Shared bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
        ::"r"(to), "l"(map), "r"(0), "r"(y), "r"(z), "r"(bar) : "memory");
}

// The same for both blocks of a cluster of two, at the same place of each, which its own barrier counts.
DEVICE void copy_box_to_both(Shared to, const TensorMap* map, int y, int z, Shared bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;"
        ::"r"(to), "l"(map), "r"(0), "r"(y), "r"(z), "r"(bar), "h"(uint16_t(3)) : "memory");
}

// === clusters

DEVICE int cluster_rank() {
    int r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
DEVICE int cluster_size() {
    int n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}
// The cluster's barrier: this block has begun and its barriers are made; and a wait for all blocks.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The address in block `rank`'s shared memory of what lies at `at` in this block's (PTX: mapa).
DEVICE uint32_t map_to_rank(uint32_t at, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
// A store of 16 bytes that count at `barrier`, which is in the same block as `at` (PTX: st.async).
DEVICE void store_async(uint32_t at, uint32_t barrier, float a, float b, float c, float d) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(at), "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}

// === products of a warpgroup

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// An operand in shared memory: rows of 16-byte pieces, eight rows of one piece behind each other (128 bytes),
// `piece_bytes` from a piece to the next, and `group_bytes` from eight rows to the next eight.
DEVICE uint64_t wgmma_operand(uint32_t at, int group_bytes, int piece_bytes = 128) {
    // Above 18 bits an address says which block of the cluster it is in.
    return uint64_t((at & 0x3FFFF) >> 4) | uint64_t(piece_bytes >> 4) << 16 | uint64_t(group_bytes >> 4) << 32;
}

// The product d = a b, or with `keep` d += a b: a is 64 x 16 in registers, b N x 16 in shared memory. Of d, a
// lane has rows g and g + 8 of its warp's 16, columns 8j + 2t and 8j + 2t + 1.
template <int N>
DEVICE void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool keep);
// d = a b, whatever was in d.
template <int N> DEVICE void wgmma_fresh(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b);

#define EIGHT(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define EIGHTS1(C) EIGHT(C, 0), EIGHT(C, 8)
#define EIGHTS3(C) EIGHTS1(C), EIGHT(C, 16), EIGHT(C, 24)
#define EIGHTS5(C) EIGHTS3(C), EIGHT(C, 32), EIGHT(C, 40)
#define EIGHTS7(C) EIGHTS5(C), EIGHT(C, 48), EIGHT(C, 56)
#define EIGHTS0(C) EIGHT(C, 0)
#define NAMES0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES1 NAMES0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES3 NAMES1 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES5 NAMES3 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES7 NAMES5 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define ADDED(v) "+f"(v)
#define FRESH(v) "=f"(v)
#define WGMMA_TEXT(N, NAMES, A, B, KEEP, TRANSPOSED)                                   \
    "{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\n"                           \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" NAMES "}, " A ", " B    \
    ", keep, 1, 1, " TRANSPOSED ";\n}"
#define WGMMA(N, I, A, B, KEEP)                                                                \
    template <>                                                                                \
    DEVICE void wgmma<N>(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool keep) {   \
        asm volatile(WGMMA_TEXT(N, NAMES##I, A, B, KEEP, "0") : EIGHTS##I(ADDED)               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(keep)));    \
    }                                                                                          \
    template <> DEVICE void wgmma_fresh<N>(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) { \
        asm volatile(WGMMA_TEXT(N, NAMES##I, A, B, KEEP, "0") : EIGHTS##I(FRESH)               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(0));            \
    }
WGMMA(16, 0, "{%8,%9,%10,%11}", "%12", "%13")
WGMMA(32, 1, "{%16,%17,%18,%19}", "%20", "%21")
WGMMA(64, 3, "{%32,%33,%34,%35}", "%36", "%37")
WGMMA(96, 5, "{%48,%49,%50,%51}", "%52", "%53")
WGMMA(128, 7, "{%64,%65,%66,%67}", "%68", "%69")

// As `wgmma`, with both operands in shared memory.
DEVICE void wgmma_shared(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(128, NAMES7, "%64", "%65", "%66", "0, 0") : EIGHTS7(ADDED) : "l"(a), "l"(b), "r"(1));
}
DEVICE void wgmma_shared_fresh(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(128, NAMES7, "%64", "%65", "%66", "0, 0") : EIGHTS7(FRESH) : "l"(a), "l"(b), "r"(0));
}

// Sums are not read by what stands in front of this.
template <int N> DEVICE void wgmma_pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
#endif
