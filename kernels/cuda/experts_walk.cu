// A mixture of experts where an expert has few rows: batches that decode. Bound by reading the weights of the
// experts that are chosen at all, once.
//
// Block (32, warps): a warp has two tiles of a share of up to sixteen rows, gate's and up's or two neighbours, and
// walks all of k alone (tile_ring.cuh), so no warp waits for another. Rows come through the first-level cache,
// which the warps of a block fill for each other, and are on their way while a unit is waited for. Of 32 rows a
// warp has no registers for that (bench/results/experts.md).
#pragma once
#include "experts.cuh"
#include "tile_ring.cuh"

constexpr int WALK_WARPS = 8;
constexpr int WALK_STAGES = 4;
constexpr int WALK_ROWS = 16;

// A lane's rows among those of a share: g and g + 8.
struct WalkRows {
    const __half* x[2];  // null past the end

    DEVICE WalkRows(const ExpertsArgs& a, const Share& share, const Lane& lane) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = 8 * i + lane.g;
            x[i] = nullptr;
            if (at < share.count)
                x[i] = a.x + int64_t(input_row(a, share.first + at)) * a.units * UNIT + 8 * lane.t;
        }
    }
    // At a chunk of k.
    DEVICE Rows at(int k) const {
        const uint4 none = make_uint4(0, 0, 0, 0);
        return {x[0] ? *reinterpret_cast<const uint4*>(x[0] + k) : none,
                x[1] ? *reinterpret_cast<const uint4*>(x[1] + k) : none};
    }
};

template <int T> DEVICE void experts_walk(const ExpertsArgs& a) {
    extern __shared__ __align__(128) uint8_t smem[];
    launch_dependents();
    grid_dependency_wait();
    // Both are on their way at once: there is room for as many shares as there are blocks.
    const Share share = a.routing.shares[blockIdx.y];
    if (blockIdx.y >= a.routing.counts[0]) return;
    const int tiles = a.parts[0].tiles, own = blockIdx.x * blockDim.y + threadIdx.y;
    const int first = a.paired ? own : 2 * own;
    if (first >= tiles) return;
    const int second = a.paired ? own : min(first + 1, tiles - 1);
    Lane lane;
    TileRing<T, 2, WALK_STAGES> ring(smem, threadIdx.y);
    const uint8_t* tile[2] = {tile_of<T>(a, 0, share.expert, first), tile_of<T>(a, a.paired, share.expert, second)};
    Segments walk(a.units, 0), ahead = walk;
    int asked = 0;
    auto ask = [&](int slot) {
        if (asked++ < a.units) {
            const uint8_t* const units[2] = {tile[0] + ahead.unit * unit_bytes(T), tile[1] + ahead.unit * unit_bytes(T)};
            ring.ask(units, slot, lane);
            ahead.next();
        }
        copies_done();
    };
#pragma unroll
    for (int i = 0; i < ring.STAGES; i++) ask(i);
    const WalkRows rows(a, share, lane);
    float d[2][4] = {}, total[2][4] = {};
    for (int i = 0; i < a.units; i++) {
        const int k = walk.unit * UNIT;
        const bool goes_on = walk.next();
        Rows x[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) x[c] = rows.at(k + c * CHUNK);
        const uint8_t* unit = ring.wait();
        constexpr int GROUP = Weights<T>::GROUP;
#pragma unroll
        for (int group = 0; group < CHUNKS / GROUP; group++) {
            Weights<T> w[2];
#pragma unroll
            for (int n = 0; n < 2; n++) w[n].template load<false>(unit + n * unit_bytes(T), lane, group);
#pragma unroll
            for (int j = 0; j < GROUP; j++) {
                const int c = group * GROUP + j;
#pragma unroll
                for (int plane = 0; plane < Weights<T>::PLANES; plane++)
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        uint32_t b[4];
                        w[n].fragment(j, plane, b);
                        mma(d[n], x[c].a.x, x[c].b.x, x[c].a.y, x[c].b.y, b[0], b[1]);
                        mma(d[n], x[c].a.z, x[c].b.z, x[c].a.w, x[c].b.w, b[2], b[3]);
                    }
            }
        }
        const int slot = ring.slot;
        ring.release();
        ask(slot);
        if (goes_on) continue;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float& t = (&total[0][0])[j];
            float& s = (&d[0][0])[j];
            t = __fadd_rn(t, s);
            s = 0.0f;
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int at = 8 * j + lane.g, column = 2 * lane.t;
        if (at >= share.count) continue;
        const float2 one = make_float2(total[0][2 * j], total[0][2 * j + 1]);
        const float2 other = make_float2(total[1][2 * j], total[1][2 * j + 1]);
        const int place = share.first + at;
        const float scale = a.scale[input_row(a, place)];
        if (a.paired) {
            write_pair(a, place, first * TILE_N + column, one, other, scale);
            continue;
        }
        write_one(a, place, first * TILE_N + column, one, scale);
        if (first + 1 < tiles) write_one(a, place, second * TILE_N + column, other, scale);
    }
}

#define EXPERTS_WALK(T)                                                              \
    extern "C" __global__ void __launch_bounds__(32 * WALK_WARPS, 3)                 \
    experts_walk_##T(const __grid_constant__ ExpertsArgs a) { experts_walk<T>(a); }
EACH_TYPE(EXPERTS_WALK)
