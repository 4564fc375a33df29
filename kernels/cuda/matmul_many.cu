// Matmul for many rows: prompts and large batches, on every architecture but Hopper, which has
// matmul_wgmma.cu. Bound by the tensor cores.
//
// A block computes BM rows x BN outputs, its warps MT * 16 x NT * 8 each. Activations and packed
// weights of one unit (128 of k) are copied to shared memory while the unit before is
// multiplied; weights become F16 in registers on the way to the tensor core. Shared memory of
// activations is swizzled so that eight lanes reading two rows hit all banks. Segments are walked
// in order into a second accumulator (matmul.cuh).
#pragma once
#include "hopper.cuh"
#include "matmul.cuh"

DEVICE void copy_async(void* shared, const void* global, bool real) {
    uint32_t to = uint32_t(__cvta_generic_to_shared(shared));
    int bytes = real ? 16 : 0;  // 0 fills with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
}
DEVICE void copies_done() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT)); }

// 16-byte piece `piece` of row `row`.
DEVICE int swizzled(int row, int piece) { return row * 2 * UNIT + ((piece ^ ((row & 1) << 2)) << 4); }

template <int T, int MT, int NT, int WM, int WN> struct Many {
    static constexpr int BM = MT * 16 * WM, TILES = NT * WN, THREADS = 32 * WM * WN;
    static constexpr int A_BYTES = BM * 2 * UNIT, STAGE = A_BYTES + TILES * unit_bytes(T);
    static constexpr int STAGES = 2;

    const MatmulArgs& a;
    const Part& part;
    int row0, tile0;
    uint8_t* shared;

    DEVICE void fetch(int u, uint8_t* stage) {
        for (int i = threadIdx.x; i < BM * 16; i += THREADS) {
            int row = i >> 4, piece = i & 15;
            bool real = row0 + row < a.rows;
            const __half* from =
                a.x + int64_t(real ? row0 + row : 0) * a.units * UNIT + u * UNIT + 8 * piece;
            copy_async(stage + swizzled(row, piece), from, real);
        }
        constexpr int PIECES = unit_bytes(T) / 16;
        for (int i = threadIdx.x; i < TILES * PIECES; i += THREADS) {
            int tile = i / PIECES, piece = i % PIECES;
            bool real = tile0 + tile < part.tiles;
            const uint8_t* from = part.weight +
                (int64_t(real ? tile0 + tile : 0) * a.units + u) * unit_bytes(T) + 16 * piece;
            copy_async(stage + A_BYTES + tile * unit_bytes(T) + 16 * piece, from, real);
        }
    }

    DEVICE void multiply_unit(float (&d)[MT][NT][4], const uint8_t* stage, int wm, int wn, const Lane& lane) {
        const uint8_t* weights = stage + A_BYTES + wn * NT * unit_bytes(T);
        constexpr int GROUP = Weights<T>::GROUP;
#pragma unroll
        for (int group = 0; group < CHUNKS / GROUP; group++) {
            Weights<T> w[NT];
#pragma unroll
            for (int n = 0; n < NT; n++)
                w[n].template load<false>(weights + n * unit_bytes(T), lane, group);
#pragma unroll
            for (int c = 0; c < GROUP; c++) {
                int piece = 4 * (group * GROUP + c) + lane.t;
                Rows x[MT];
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    int row = (wm * MT + m) * 16 + lane.g;
                    x[m].a = *reinterpret_cast<const uint4*>(stage + swizzled(row, piece));
                    x[m].b = *reinterpret_cast<const uint4*>(stage + swizzled(row + 8, piece));
                }
#pragma unroll
                for (int plane = 0; plane < Weights<T>::PLANES; plane++)
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        uint32_t b[4];
                        w[n].fragment(c, plane, b);
#pragma unroll
                        for (int m = 0; m < MT; m++) {
                            mma(d[m][n], x[m].a.x, x[m].b.x, x[m].a.y, x[m].b.y, b[0], b[1]);
                            mma(d[m][n], x[m].a.z, x[m].b.z, x[m].a.w, x[m].b.w, b[2], b[3]);
                        }
                    }
            }
        }
    }

    DEVICE void run() {
        Lane lane;
        int warp = threadIdx.x / 32, wm = warp / WN, wn = warp % WN;
        float total[MT][NT][4] = {}, d[MT][NT][4] = {};
        Segments walk(a.units, 0);
        fetch(0, shared);
        copies_done();
        for (int i = 0; i < a.units; i++) {
            bool goes_on = walk.next();
            if (i + 1 < a.units) fetch(walk.unit, shared + (i + 1) % STAGES * STAGE);
            copies_done();
            wait_copies<1>();
            __syncthreads();
            multiply_unit(d, shared + i % STAGES * STAGE, wm, wn, lane);
            __syncthreads();
            if (goes_on) continue;
#pragma unroll
            for (int i = 0; i < MT * NT * 4; i++) {
                float& t = (&total[0][0][0])[i];
                float& s = (&d[0][0][0])[i];
                t = __fadd_rn(t, s);
                s = 0.0f;
            }
        }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int row = row0 + (wm * MT + m) * 16 + lane.g + 8 * (i >> 1);
                    int tile = tile0 + wn * NT + n;
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
    using Block = Many<T, MT, NT, WM, WN>;
    static_assert(Block::BM == SIDE && Block::TILES * TILE_N == SIDE && Block::THREADS == MANY_THREADS);
    int block = blockIdx.y, p = 0;
    for (;; p++) {
        int blocks = (a.parts[p].tiles + Block::TILES - 1) / Block::TILES;
        if (block < blocks) break;
        block -= blocks;
    }
    Block b = {a, a.parts[p], int(blockIdx.x) * Block::BM, block * Block::TILES, smem};
    b.run();
}

// Blocks of 128 x 128 where there is enough to do, of 64 x 64 otherwise (device/cuda/matmul.rs).
#define MATMUL_MANY(T)                                                                          \
    extern "C" __global__ void __launch_bounds__(MANY_THREADS, 1)                               \
    matmul_many_##T##_128(const __grid_constant__ MatmulArgs a) { matmul_many<T, 128, 4, 4, 2, 4>(a); } \
    extern "C" __global__ void __launch_bounds__(MANY_THREADS, 2)                               \
    matmul_many_##T##_64(const __grid_constant__ MatmulArgs a) { matmul_many<T, 64, 2, 2, 2, 4>(a); }
EACH_TYPE(MATMUL_MANY)
