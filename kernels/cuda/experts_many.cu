// A mixture of experts where an expert has many rows: prompts. A block multiplies a share of up to 64 rows by
// sixteen tiles (matmul_block.cuh): of gate and up eight each, in the same warps, or sixteen neighbours. Blocks
// of a share are neighbours of the grid, as are shares of one expert, so its weights are read once. Hopper has
// experts_wide.cu instead.
#pragma once
#include "experts.cuh"
#include "matmul_block.cuh"

constexpr int EXPERTS_ROWS = 64;
constexpr int EXPERTS_TILES = 16;
constexpr int EXPERTS_THREADS = 256;
constexpr int EXPERTS_WARP_TILES = 4;

template <int T> struct ExpertWork {
    static constexpr bool GATHERS = true;

    const ExpertsArgs& a;
    Share share;
    int block, units;
    const uint8_t *first_part, *second_part;

    DEVICE ExpertWork(const ExpertsArgs& a, const Share& share, int block)
        : a(a), share(share), block(block), units(a.units),
          first_part(tile_of<T>(a, 0, share.expert, 0)),
          second_part(tile_of<T>(a, a.paired, share.expert, 0)) {}

    DEVICE int rows() const { return share.count; }
    DEVICE const __half* row(int i) const { return a.x + int64_t(input_row(a, share.first + i)) * units * UNIT; }
    // Of part 1 where a pair has the second half of a warp's tiles.
    DEVICE bool is_second(int i) const { return a.paired && i % EXPERTS_WARP_TILES >= EXPERTS_WARP_TILES / 2; }
    // The tile of an expert that tile i of the block is.
    DEVICE int place(int i) const {
        constexpr int HALF = EXPERTS_WARP_TILES / 2;
        if (!a.paired) return block * EXPERTS_TILES + i;
        return block * EXPERTS_TILES / 2 + i / EXPERTS_WARP_TILES * HALF + i % HALF;
    }
    DEVICE const uint8_t* tile(int i) const {
        const int tile = place(i);
        return (is_second(i) ? second_part : first_part) + int64_t(tile < a.parts[0].tiles ? tile : 0) * (units * unit_bytes(T));
    }
    template <int MT, int NT>
    DEVICE void write(const float (&total)[MT][NT][4], int first_row, int first_tile, const Lane& lane) const {
        static_assert(NT == EXPERTS_WARP_TILES);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = first_row + 16 * m + 8 * h + lane.g;
                if (row >= share.count) continue;
                const int at = share.first + row;
                const float scale = a.scale[input_row(a, at)];
                auto sums = [&](int n) { return make_float2(total[m][n][2 * h], total[m][n][2 * h + 1]); };
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const int tile = place(first_tile + n), column = tile * TILE_N + 2 * lane.t;
                    if (tile >= a.parts[0].tiles) continue;
                    if (!a.paired) write_one(a, at, column, sums(n), scale);
                    else if (n < NT / 2) write_pair(a, at, column, sums(n), sums(n + NT / 2), scale);
                }
            }
    }
};

template <int T> DEVICE void experts_many(const ExpertsArgs& a) {
    extern __shared__ __align__(128) uint8_t smem[];
    launch_dependents();
    grid_dependency_wait();
    const Share share = a.routing.shares[blockIdx.y];
    if (blockIdx.y >= a.routing.counts[0]) return;
    using Block = MatmulBlock<T, 2, EXPERTS_WARP_TILES, 2, 4, ExpertWork<T>>;
    static_assert(Block::BM == EXPERTS_ROWS && Block::TILES == EXPERTS_TILES && Block::THREADS == EXPERTS_THREADS);
    const ExpertWork<T> work(a, share, blockIdx.x);
    Block(work, smem).run();
}

#define EXPERTS_MANY(T)                                                              \
    extern "C" __global__ void __launch_bounds__(EXPERTS_THREADS, 2)                 \
    experts_many_##T(const __grid_constant__ ExpertsArgs a) { experts_many<T>(a); }
EACH_TYPE(EXPERTS_MANY)
