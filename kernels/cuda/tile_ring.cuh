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

// A unit of a tile that is in shared memory.
template <int T> DEVICE void multiply_unit(float (&d)[4], const uint8_t* unit, const Rows (&x)[CHUNKS], const Lane& lane) {
    constexpr int GROUP = Weights<T>::GROUP;
#pragma unroll
    for (int group = 0; group < CHUNKS / GROUP; group++) {
        Weights<T> w;
        w.template load<false>(unit, lane, group);
#pragma unroll
        for (int c = 0; c < GROUP; c++) multiply<T>(d, x[group * GROUP + c], w, c);
    }
}

// The units of some segments, which are `step` apart: a warp has those, and others have the rest.
struct SomeSegments {
    int units, count, step;
    int segment, unit;

    DEVICE SomeSegments(int units, int first, int step)
        : units(units), count(segments_of(units)), step(step), segment(first), unit(first % count) {}
    // Of `all` segments, which may be those of several rows of weights one behind the other.
    DEVICE bool is_there(int all) const { return segment < all; }
    // Goes to the next unit; false when a segment has ended.
    DEVICE bool next() {
        unit += count;
        if (unit < units) return true;
        segment += step;
        unit = segment % count;
        return false;
    }
};
