// A mixture of experts for very few rows: each row reads the weights of the experts that it chose. Bound by
// that. A pair of row and expert is a share of its own, and nothing is sorted.
//
// Gate and up: a block has a tile of both of one pair, and its warps share the segments. Down: a block has a
// tile of one row, of all experts that it chose; its warps share the segments of all of them, and what is added
// to the stream is known when these are done. It makes the inputs itself, as `scale_rows` does, and has its
// first weights on their way before the launch in front of it has ended.
#pragma once
#include "combine.cuh"
#include "norm.cuh"
#include "tile_ring.cuh"

// Row 0 of sixteen: lanes of the others have zeros.
DEVICE Rows first_row(const __half* x, const Lane& lane) {
    const uint4 none = make_uint4(0, 0, 0, 0);
    return {lane.g == 0 ? *reinterpret_cast<const uint4*>(x + 8 * lane.t) : none, none};
}

constexpr int ROW_WARPS = 4;
constexpr int ROW_STAGES = 4;

template <int T> DEVICE void experts_row(const ExpertsArgs& a) {
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ float sums[2][MAX_SEGMENTS][TILE_N];
    grid_dependency_wait();
    // Not before: the next launch reads what the one in front of this has chosen as soon as it begins.
    launch_dependents();
    const Share share = a.routing.shares[blockIdx.y];
    const int warp = threadIdx.y, segments = segments_of(a.units);
    Lane lane;
    TileRing<T, 2, ROW_STAGES> ring(smem, warp);
    const uint8_t* tiles[2] = {tile_of<T>(a, 0, share.expert, blockIdx.x), tile_of<T>(a, 1, share.expert, blockIdx.x)};
    SomeSegments walk(a.units, warp, ROW_WARPS), ahead = walk;
    auto ask = [&](int slot) {
        if (ahead.is_there(segments)) {
            const uint8_t* const units[2] = {tiles[0] + ahead.unit * unit_bytes(T), tiles[1] + ahead.unit * unit_bytes(T)};
            ring.ask(units, slot, lane);
            ahead.next();
        }
        copies_done();
    };
#pragma unroll
    for (int i = 0; i < ring.STAGES; i++) ask(i);
    const int row = input_row(a, share.first);
    const __half* x = a.x + int64_t(row) * a.units * UNIT;
    float d[2][4] = {};
    while (walk.is_there(segments)) {
        const int segment = walk.segment;
        Rows rows[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) rows[c] = first_row(x + walk.unit * UNIT + c * CHUNK, lane);
        const uint8_t* unit = ring.wait();
#pragma unroll
        for (int k = 0; k < 2; k++) multiply_unit<T>(d[k], unit + k * unit_bytes(T), rows, lane);
        const int slot = ring.slot;
        ring.release();
        ask(slot);
        if (walk.next()) continue;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (lane.g == 0)
                *reinterpret_cast<float2*>(&sums[k][segment][2 * lane.t]) = make_float2(d[k][0], d[k][1]);
#pragma unroll
            for (int i = 0; i < 4; i++) d[k][i] = 0.0f;
        }
    }
    __syncthreads();
    if (warp > 0 || lane.id >= TILE_N) return;
    float gate = 0.0f, up = 0.0f;
    for (int s = 0; s < segments; s++) {
        gate = __fadd_rn(gate, sums[0][s][lane.id]);
        up = __fadd_rn(up, sums[1][s][lane.id]);
    }
    const float scale = a.scale[row];
    const int column = blockIdx.x * TILE_N + lane.id;
    gate = ended(bias_of_share(a, 0), column, gate, scale);
    up = ended(bias_of_share(a, 1), column, up, scale);
    a.out[int64_t(share.first) * a.out_stride + column] = glu(a.activation, gate, up);
}

struct DownArgs {
    ExpertsArgs down;     // `x`, `scale` and `out` are not used
    const float* inputs;  // by place, `cols` behind each other
    int cols, unused;
    CombineArgs combine;
};
LAYOUT(DownArgs, 264, AT(down, 0) AT(inputs, 152) AT(cols, 160) AT(unused, 164) AT(combine, 168))

constexpr int DOWN_WARPS = 8;
constexpr int DOWN_STAGES = 6;

// A row's inputs of down in shared memory: what each chosen expert made of it.
DEVICE void stage_inputs(const DownArgs& a, int first, __half* x, float* scale) {
    const int warp = threadIdx.y, lane = threadIdx.x, units = a.down.units;
    for (int c = warp; c < a.combine.used; c += DOWN_WARPS) {
        const float* from = a.inputs + int64_t(first + c) * a.cols;
        float down = SWIGLU_UP, up = 1.0f / SWIGLU_UP;
        if (a.down.activation != CLAMPED_SWIGLU) {
            float max = 0.0f;
#pragma unroll 8
            for (int u = 0; u < units; u++) max = fmaxf(max, largest(four(from, u * UNIT + 4 * lane, a.cols)));
            const int e = row_exponent(warp_max(max));
            down = power_of_two(-e);
            up = power_of_two(e);
        }
        if (lane == 0) scale[c] = up;
#pragma unroll 4
        for (int u = 0; u < units; u++) {
            const Four v = four(from, u * UNIT + 4 * lane, a.cols);
            *reinterpret_cast<uint2*>(x + (c * units + u) * UNIT + 4 * lane) =
                make_uint2(pack(__fmul_rn(v.v[0], down), __fmul_rn(v.v[1], down)),
                           pack(__fmul_rn(v.v[2], down), __fmul_rn(v.v[3], down)));
        }
    }
}

// Shared memory: the warps' rings, inputs [used][units * 128], sums [used][segments][8], scales [used].
template <int T> DEVICE void experts_down(const DownArgs& a) {
    extern __shared__ __align__(128) uint8_t smem[];
    using Ring = TileRing<T, 1, DOWN_STAGES>;
    const ExpertsArgs& d = a.down;
    const CombineArgs& c = a.combine;
    const int units = d.units, segments = segments_of(units), used = c.used, all = used * segments;
    __half* inputs = reinterpret_cast<__half*>(smem + DOWN_WARPS * Ring::BYTES);
    float* sums = reinterpret_cast<float*>(inputs + used * units * UNIT);
    float* scale = sums + all * TILE_N;
    const int row = blockIdx.y, first = row * used, tile = blockIdx.x;
    const int warp = threadIdx.y;
    Lane lane;
    launch_dependents();
    Ring ring(smem, warp);
    // The segments of all experts, one behind the other.
    SomeSegments walk(units, warp, DOWN_WARPS), ahead = walk;
    auto ask = [&](int slot) {
        if (ahead.is_there(all)) {
            // Past what the first-level cache may still have of an earlier step.
            const int expert = __ldcg(&d.routing.choices[first + ahead.segment / segments].expert);
            const uint8_t* const unit[1] = {tile_of<T>(d, 0, expert, tile) + ahead.unit * unit_bytes(T)};
            ring.ask(unit, slot, lane);
            ahead.next();
        }
        copies_done();
    };
#pragma unroll
    for (int i = 0; i < ring.STAGES; i++) ask(i);
    grid_dependency_wait();
    stage_inputs(a, first, inputs, scale);
    __syncthreads();
    float total[4] = {};
    while (walk.is_there(all)) {
        const int segment = walk.segment;
        Rows rows[CHUNKS];
        const __half* x = inputs + (segment / segments * units + walk.unit) * UNIT;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) rows[i] = first_row(x + i * CHUNK, lane);
        multiply_unit<T>(total, ring.wait(), rows, lane);
        const int slot = ring.slot;
        ring.release();
        ask(slot);
        if (walk.next()) continue;
        if (lane.g == 0)
            *reinterpret_cast<float2*>(sums + segment * TILE_N + 2 * lane.t) = make_float2(total[0], total[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) total[i] = 0.0f;
    }
    __syncthreads();
    // Each expert's outputs take the place of its first segment's.
    for (int i = warp * 32 + lane.id; i < used * TILE_N; i += 32 * DOWN_WARPS) {
        float* own = sums + i / TILE_N * segments * TILE_N + i % TILE_N;
        float v = 0.0f;
        for (int s = 0; s < segments; s++) v = __fadd_rn(v, own[s * TILE_N]);
        const float* bias = bias_of(d.parts[0], d.routing.choices[first + i / TILE_N].expert);
        *own = ended(bias, tile * TILE_N + i % TILE_N, v, scale[i / TILE_N]);
    }
    __syncthreads();
    const int column = tile * TILE_N + lane.id;
    if (warp > 0 || lane.id >= TILE_N || column >= c.n_embd) return;
    float sum = 0.0f;
    for (int i = 0; i < used; i++)
        sum = weighted(sum, c.routing.choices[first + i].weight, sums[i * segments * TILE_N + lane.id]);
    const int64_t out = int64_t(row) * c.n_embd + column;
    if (c.shared) sum = weighted(sum, shared_weight(c, row), c.shared[out]);
    c.x[out] = c.stores ? sum : residual_sum(c.x[out], sum);
}

#define EXPERTS_ROW(T)                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * ROW_WARPS)                            \
    experts_row_##T(const __grid_constant__ ExpertsArgs a) { experts_row<T>(a); }            \
    extern "C" __global__ void __launch_bounds__(32 * DOWN_WARPS)                           \
    experts_down_##T(const __grid_constant__ DownArgs a) { experts_down<T>(a); }
EACH_TYPE(EXPERTS_ROW)
