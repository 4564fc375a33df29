// The kernels of matmul_wgmma.cuh, one for each type and block, as a translation unit of its own.
#include "matmul_wgmma.cuh"

// Grid: blocks walk tiles; with clusters, a cluster has exactly one.
template <int T, int WG, int NB> DEVICE void matmul_wide(const WideArgs& args) {
#ifdef HAS_WGMMA
    using Block = Wide<T, WG, NB>;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ uint64_t barriers[2 * MAX_STAGES + 1];
    launch_dependents();
    Block block(args, smem, shared_address(barriers));
    if (threadIdx.x == 0) {
        for (int i = 0; i < args.stages; i++) {
            barrier_init(block.of_stage(block.full, i), 1);
            barrier_init(block.of_stage(block.empty, i), Block::WARPS * (block.shares ? 2 : 1));
        }
        barrier_init(block.sums_full, 1);
        fence_barrier_init();
        if (block.split > 1) block.expect_segments();
    }
    __syncthreads();
    if (block.split > 1 || block.shares) cluster_arrive();
    // The other block writes here from its beginning on.
    if (block.shares) cluster_wait();
    int tile = blockIdx.x / block.split, step = gridDim.x / block.split;
    bool copies = threadIdx.x / 32 >= Block::WARPS;
    if (copies) {
        if (Block::LARGE) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPIER_REGISTERS));
        if (threadIdx.x / 32 == Block::WARPS && elect_lane()) block.produce(tile, step);
    } else {
        if (Block::LARGE) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLIER_REGISTERS));
        block.consume(tile, step);
    }
    if (block.shares) {
        // What the other block still sends here must find this one.
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    }
    if (block.split == 1) return;
    __syncwarp();
    if (copies) cluster_wait();
    else block.add_segments(tile);
#endif
}

// The blocks of device/cuda/wide.rs. The last number is of blocks that fit a multiprocessor.
#define MATMUL_WIDE_OF(KIND, T, WG, NB, TOGETHER)                                            \
    extern "C" __global__ void __launch_bounds__(WG == 2 && NB == 128 ? 384 : (WG * 4 + 1) * 32, TOGETHER) \
    matmul_##KIND##_##T##_##WG##_##NB(const __grid_constant__ WideArgs a) { matmul_wide<T, WG, NB>(a); }
#define MATMUL_WIDE(T)                                                                       \
    MATMUL_WIDE_OF(wide, T, 1, 32, 3) MATMUL_WIDE_OF(wide, T, 1, 64, 2)                      \
    MATMUL_WIDE_OF(wide, T, 2, 64, 1) MATMUL_WIDE_OF(wide, T, 2, 128, 1)
EACH_TYPE(MATMUL_WIDE)
#define MATMUL_WARPS(T)                                                                      \
    MATMUL_WIDE_OF(warps, T, 1, 8, 5) MATMUL_WIDE_OF(warps, T, 1, 16, 5) MATMUL_WIDE_OF(warps, T, 1, 24, 4)
EACH_QUANTIZED(MATMUL_WARPS)
MATMUL_WIDE_OF(wide, F32, 1, 16, 3)
MATMUL_WIDE_OF(wide, F16, 1, 16, 3)
