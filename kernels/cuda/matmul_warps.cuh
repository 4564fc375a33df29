// A unit of two tiles by few rows of activations, by the tensor-core steps of one warp (mma.sync), in matmul_wgmma.cuh.
//
// The steps of a warpgroup take their left operand from registers that nothing may touch until they are done, so a warp that
// unpacks weights waits for them. With few rows unpacking is nearly all there is to do, and warps that need not wait for
// each other do it faster (bench/results/cuda.md). The order of steps is the same, and so are the bits.
#pragma once
#include "bulk.cuh"
#include "weights.cuh"

constexpr int MOST_WARP_ROWS = 24;
constexpr int GROUP_BYTES = 8 * UNIT * 2;  // eight rows of activations, one unit (input_rows.cuh)

// NB rows, in groups of eight; the other tile lies OTHER bytes behind the first. All of it is in registers.
template <int T, int NB, int OTHER> struct WarpUnit {
    static constexpr int GROUP = Weights<T>::GROUP;
    static constexpr int CHUNK_BYTES = GROUP_BYTES / CHUNKS;  // four pieces of eight rows: the operands of two steps

    Weights<T> low[CHUNKS / GROUP], high[CHUNKS / GROUP];
    uint32_t x[NB / 8][CHUNKS][4];

    // `rows` is this lane's place in the first piece of the rows, `tile` the first tile.
    DEVICE WarpUnit(Shared rows, Shared tile, const Lane& lane) {
#pragma unroll
        for (int i = 0; i < CHUNKS / GROUP; i++) {
            low[i].template load<false>(tile, lane, i);
            high[i].template load<false>(tile + OTHER, lane, i);
        }
#pragma unroll
        for (int n = 0; n < NB / 8; n++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) load_matrices(x[n][c], rows + n * GROUP_BYTES + c * CHUNK_BYTES);
    }

    // A lane has rows g of both tiles, and rows 2t and 2t + 1 of each eight of activations, as of wgmma.
    DEVICE void multiply(float (&d)[NB / 2]) const {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            uint32_t l[4], h[4];
            low[c / GROUP].fragment(c % GROUP, 0, l);
            high[c / GROUP].fragment(c % GROUP, 0, h);
#pragma unroll
            for (int n = 0; n < NB / 8; n++) {
                float(&sums)[4] = *reinterpret_cast<float(*)[4]>(&d[4 * n]);
                mma(sums, l[0], h[0], l[1], h[1], x[n][c][0], x[n][c][1]);
                mma(sums, l[2], h[2], l[3], h[3], x[n][c][2], x[n][c][3]);
            }
        }
    }
};
