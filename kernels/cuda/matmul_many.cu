// Matmul for many rows: prompts and large batches, on every architecture but Hopper, which has
// matmul_wgmma.cuh. Bound by the tensor cores. A block is one of matmul_block.cuh.
#include "matmul_block.cuh"

// Rows and tiles of a weight from `row0` and `tile0` on.
template <int T> struct DenseWork {
    static constexpr bool GATHERS = false;

    const MatmulArgs& a;
    const Part& part;
    int row0, tile0, most, units;

    DEVICE int rows() const { return min(a.rows - row0, most); }
    DEVICE const __half* row(int i) const { return a.x + int64_t(row0 + i) * units * UNIT; }
    DEVICE const uint8_t* tile(int i) const {
        const int tile = tile0 + i < part.tiles ? tile0 + i : 0;
        return part.weight + int64_t(tile) * units * unit_bytes(T);
    }
    template <int MT, int NT>
    DEVICE void write(const float (&total)[MT][NT][4], int first_row, int first_tile, const Lane& lane) const {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int row = row0 + first_row + 16 * m + lane.g + 8 * (i >> 1);
                    int tile = tile0 + first_tile + n;
                    if (row < a.rows && tile < part.tiles)
                        epilogue(a, part, row, tile * TILE_N + 2 * lane.t + (i & 1), total[m][n][i]);
                }
    }
};

constexpr int MANY_THREADS = 256;

// The grid has blocks of rows fastest, so that neighbours share weights in L2.
template <int T, int SIDE, int MT, int NT, int WM, int WN>
DEVICE void matmul_many(const MatmulArgs& a) {
    extern __shared__ __align__(128) uint8_t smem[];
    launch_dependents();
    grid_dependency_wait();
    using Block = MatmulBlock<T, MT, NT, WM, WN, DenseWork<T>>;
    static_assert(Block::BM == SIDE && Block::TILES * TILE_N == SIDE && Block::THREADS == MANY_THREADS);
    int block = blockIdx.y, p = 0;
    for (;; p++) {
        int blocks = (a.parts[p].tiles + Block::TILES - 1) / Block::TILES;
        if (block < blocks) break;
        block -= blocks;
    }
    const DenseWork<T> work = {a, a.parts[p], int(blockIdx.x) * Block::BM, block * Block::TILES, Block::BM, a.units};
    Block(work, smem).run();
}

// Blocks of 128 x 128 where there is enough to do, of 64 x 64 otherwise (device/cuda/matmul.rs).
#define MATMUL_MANY(T)                                                                          \
    extern "C" __global__ void __launch_bounds__(MANY_THREADS, 1)                               \
    matmul_many_##T##_128(const __grid_constant__ MatmulArgs a) { matmul_many<T, 128, 4, 4, 2, 4>(a); } \
    extern "C" __global__ void __launch_bounds__(MANY_THREADS, 2)                               \
    matmul_many_##T##_64(const __grid_constant__ MatmulArgs a) { matmul_many<T, 64, 2, 2, 2, 4>(a); }
EACH_TYPE(MATMUL_MANY)
