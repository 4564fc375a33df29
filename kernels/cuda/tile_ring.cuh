// A warp's own ring of units of N tiles: it copies into shared memory ahead of what it multiplies, and no
// other warp waits for it.
//
// A slot is asked for again when its unit has been multiplied; there is one group of copies a unit, empty
// ones at the end, so that waiting for all but the last STAGES - 1 is waiting for the next one.
#pragma once
#include "copies.cuh"
#include "weights.cuh"

// Of one tile in a warp's ring, at most; there are two slots at least.
constexpr int RING_BYTES = 6144;
__host__ __device__ constexpr int ring_stages(int type, int most) {
    const int fit = RING_BYTES / unit_bytes(type);
    return fit < 2 ? 2 : fit > most ? most : fit;
}

template <int T, int N, int MOST> struct TileRing {
    static constexpr int STAGES = ring_stages(T, MOST), SLOT = N * unit_bytes(T), BYTES = STAGES * SLOT;
    static constexpr int PIECES = unit_bytes(T) / 16;

    uint8_t* slots;
    int slot = 0;

    DEVICE TileRing(uint8_t* smem, int warp) : slots(smem + warp * BYTES) {}

    // Asks for a unit of each tile into slot `to`; for none where there is no more.
    DEVICE void ask(const uint8_t* const (&units)[N], int to, const Lane& lane) const {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < PIECES; i += 32)
                if (i + lane.id < PIECES)
                    copy_async(slots + to * SLOT + n * unit_bytes(T) + 16 * (i + lane.id),
                               units[n] + 16 * (i + lane.id), true);
    }
    // The next unit, of all tiles.
    DEVICE const uint8_t* wait() const {
        wait_copies<STAGES - 1>();
        __syncwarp();
        return slots + slot * SLOT;
    }
    // It is done with: another one may take its place.
    DEVICE void release() {
        __syncwarp();
        if (++slot == STAGES) slot = 0;
    }
};
