// A block that multiplies many rows by many tiles: what matmul_many.cu and experts_many.cu share.
//
// A block computes BM rows x BN outputs, its warps MT * 16 x NT * 8 each. Activations and packed
// weights of one unit (128 of k) are copied to shared memory while the unit before is
// multiplied; weights become F16 in registers on the way to the tensor core. Shared memory of
// activations is swizzled so that eight lanes reading two rows hit all banks. Segments are walked
// in order into a second accumulator (matmul.cuh).
//
// `Work` says what is multiplied:
//   units                      of k
//   rows()                     of the block, BM at most; the first is always there
//   row(i)                     where row i begins
//   GATHERS                    rows lie anywhere, and are often few: a thread keeps where its own begin, and a warp
//                              without rows multiplies nothing. Others lack the registers for it on Blackwell
//   tile(i)                    where tile i of the block begins: a real one, also past the last
//   write(total, row, n, lane) writes a warp's sums, from a row and a tile of the block on
#pragma once
#include "copies.cuh"
#include "hopper.cuh"
#include "matmul.cuh"

// 16-byte piece `piece` of row `row`.
DEVICE int swizzled(int row, int piece) { return row * 2 * UNIT + ((piece ^ ((row & 1) << 2)) << 4); }

template <int T, int MT, int NT, int WM, int WN, typename Work> struct MatmulBlock {
    static constexpr int BM = MT * 16 * WM, TILES = NT * WN, THREADS = 32 * WM * WN;
    static constexpr int A_BYTES = BM * 2 * UNIT, STAGE = A_BYTES + TILES * unit_bytes(T);
    static constexpr int STAGES = 2;
    // Rows that a thread copies a piece of.
    static constexpr int COPIED = BM * 16 / THREADS;

    const Work& work;
    uint8_t* shared;
    const __half* kept[Work::GATHERS ? COPIED : 1];
    int rows;

    DEVICE MatmulBlock(const Work& work, uint8_t* shared) : work(work), shared(shared), rows(work.rows()) {
        if constexpr (Work::GATHERS)
#pragma unroll
            for (int i = 0; i < COPIED; i++) kept[i] = begin_of(i);
    }

    // Where the thread's piece of its i-th row begins.
    DEVICE const __half* begin_of(int i) const {
        const int row = (threadIdx.x + i * THREADS) >> 4;
        return work.row(row < rows ? row : 0) + 8 * (threadIdx.x & 15);
    }

    DEVICE void fetch(int u, uint8_t* stage) {
#pragma unroll
        for (int i = 0; i < COPIED; i++) {
            const int row = (threadIdx.x + i * THREADS) >> 4, piece = threadIdx.x & 15;
            const __half* from;
            if constexpr (Work::GATHERS) from = kept[i];
            else from = begin_of(i);
            copy_async(stage + swizzled(row, piece), from + u * UNIT, row < rows);
        }
        constexpr int PIECES = unit_bytes(T) / 16;
        for (int i = threadIdx.x; i < TILES * PIECES; i += THREADS) {
            int tile = i / PIECES, piece = i % PIECES;
            const uint8_t* at = work.tile(tile) + u * unit_bytes(T) + 16 * piece;
            copy_async(stage + A_BYTES + tile * unit_bytes(T) + 16 * piece, at, true);
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
        const bool works = !Work::GATHERS || wm * MT * 16 < rows;
        float total[MT][NT][4] = {}, d[MT][NT][4] = {};
        Segments walk(work.units, 0);
        fetch(0, shared);
        copies_done();
        for (int i = 0; i < work.units; i++) {
            bool goes_on = walk.next();
            if (i + 1 < work.units) fetch(walk.unit, shared + (i + 1) % STAGES * STAGE);
            copies_done();
            wait_copies<1>();
            __syncthreads();
            if (works) multiply_unit(d, shared + i % STAGES * STAGE, wm, wn, lane);
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
        work.write(total, wm * MT * 16, wn * NT, lane);
    }
};
