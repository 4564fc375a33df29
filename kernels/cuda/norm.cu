// The kernels of norm.cuh: one block for two rows, a warp for each few units of them. They read 4 bytes
// a column (glu_rows 8) and write 2; the values that a lane has read stay in its registers, unless a row
// is wider than KEEP chunks a warp.
#pragma once
#include "glu.cuh"
#include "hopper.cuh"
#include "input_rows.cuh"
#include "norm.cuh"

constexpr int MAX_ROW_THREADS = 1024;
// Units of a row that a warp has in registers.
constexpr int KEEP = 2;

// A lane's part of a unit: eight columns of one of two neighbouring rows.
struct Eight {
    Four low, high;
};
struct LanePlace {
    int lane, row, column;  // of the two rows; within a unit
    DEVICE LanePlace() : lane(threadIdx.x & 31), row(lane >> 4), column(8 * (lane & 15)) {}
};

DEVICE Eight eight(const float* row, int k, int cols) {
    return {four(row, k, cols), four(row, k + 4, cols)};
}

// Columns k .. k+7 of a row as they go into a product (input_rows.cuh).
DEVICE void store_eight(const RowArgs& a, int row, int k, const Eight& y, float down) {
    uint32_t h[4] = {
        pack(__fmul_rn(y.low.v[0], down), __fmul_rn(y.low.v[1], down)),
        pack(__fmul_rn(y.low.v[2], down), __fmul_rn(y.low.v[3], down)),
        pack(__fmul_rn(y.high.v[0], down), __fmul_rn(y.high.v[1], down)),
        pack(__fmul_rn(y.high.v[2], down), __fmul_rn(y.high.v[3], down))};
    const uint4 all = make_uint4(h[0], h[1], h[2], h[3]);
    const int64_t plain = int64_t(row) * a.units * UNIT + k;
    if (a.copy) *reinterpret_cast<uint4*>(a.copy + plain) = all;
    if (a.groups == 0) {
        *reinterpret_cast<uint4*>(a.out + plain) = all;
        return;
    }
    int64_t group = int64_t(k / UNIT) * a.groups + (row >> 3);
    __half* at = a.out + (group * 16 + (k % UNIT / CHUNK) * 4) * 64 + (row & 7) * 8 + k % CHUNK / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) *reinterpret_cast<uint32_t*>(at + 64 * i) = h[i];
}

// The units of this warp are warp, warp + warps, ...: `each(k, slot)` is called for each; the slot is
// KEEP for those that have no registers. SPREAD: over the warps of all blocks of a row (gridDim.y).
template <bool SPREAD = false, typename Each> DEVICE void lane_columns(int units, const LanePlace& place, const Each& each) {
    int warps = blockDim.x >> 5, unit = threadIdx.x >> 5;
    if (SPREAD) unit += blockIdx.y * warps, warps *= gridDim.y;
#pragma unroll
    for (int i = 0; i < KEEP; i++, unit += warps)
        if (unit < units) each(UNIT * unit + place.column, i);
    for (; unit < units; unit += warps) each(UNIT * unit + place.column, KEEP);
}

// The largest value of the lane's row, over all warps.
DEVICE float row_max(float v, const LanePlace& place, float (*smem)[MAX_ROW_THREADS / 32]) {
#pragma unroll
    for (int d = 8; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    if ((place.lane & 15) == 0) smem[place.row][threadIdx.x >> 5] = v;
    __syncthreads();
    v = smem[place.row][0];
    for (int w = 1; w < blockDim.x / 32; w++) v = fmaxf(v, smem[place.row][w]);
    return v;
}

// The rest of a row's way: scale, F16, memory. `make(k)` gives columns that are not in `kept`; all of
// them are finished but for the scale, which is `up` where they are BOUNDED. Then no column waits for another, so a row may have
// several blocks.
template <bool BOUNDED = false, typename Make>
DEVICE void write_row(const RowArgs& a, int row, const LanePlace& place, const Eight (&kept)[KEEP],
                      const Make& make) {
    __shared__ float smem[2][MAX_ROW_THREADS / 32];
    float max = 0.0f;
    lane_columns<BOUNDED>(a.units, place, [&](int k, int slot) {
        Eight y = slot < KEEP ? kept[slot] : make(k);
        max = fmaxf(max, fmaxf(largest(y.low), largest(y.high)));
        if (!a.plain || row >= a.rows) return;
        float* to = a.plain + int64_t(row) * a.cols + k;
        const float *l = y.low.v, *h = y.high.v;
        if (k < a.cols) *reinterpret_cast<float4*>(to) = make_float4(l[0], l[1], l[2], l[3]);
        if (k + 4 < a.cols) *reinterpret_cast<float4*>(to + 4) = make_float4(h[0], h[1], h[2], h[3]);
    });
    int e = BOUNDED ? 0 : row_exponent(row_max(max, place, smem));
    if (row >= a.rows) return;
    const float down = BOUNDED ? a.up : power_of_two(-e), scale = inverse_power(down);
    if (threadIdx.x == 16 * place.row) {
        a.scale[row] = scale;
        if (a.copy) a.copy_scale[row] = scale;
    }
    lane_columns<BOUNDED>(a.units, place, [&](int k, int slot) {
        store_eight(a, row, k, slot < KEEP ? kept[slot] : make(k), down);
    });
}

// The sum of squares of a unit's 128 columns, in the order of `warp_sum` over lanes of four columns:
// columns 64 apart are added first, and neighbouring fours last.
DEVICE float unit_sum(const Eight& v) {
    float low = sum_of_squares(v.low), high = sum_of_squares(v.high);
#pragma unroll
    for (int d = 8; d > 0; d >>= 1) {
        low = __fadd_rn(low, __shfl_xor_sync(~0u, low, d));
        high = __fadd_rn(high, __shfl_xor_sync(~0u, high, d));
    }
    return __fadd_rn(low, high);
}

// The stage is posted when every launch before has ended.
DEVICE void post_stage(const RowArgs& a) {
    if (blockIdx.x == 0 && threadIdx.x == 0) post(a.board + BOARD_STAGE, a.stage);
}

// The norm of rows. `finish(row, place, kept, make)` gets a row's columns, in `kept` or from `make(k)`.
template <typename Finish> DEVICE void normalize(const RowArgs& a, const Finish& finish) {
    __shared__ float sums[2][MAX_CHUNKS];
    LanePlace place;
    launch_dependents();
    Eight weight[KEEP], kept[KEEP];
    lane_columns(a.units, place, [&](int k, int slot) {
        if (slot < KEEP) weight[slot] = eight(a.weight, k, a.cols);
    });
    grid_dependency_wait();
    post_stage(a);
    // A last row without a neighbour is computed twice and written once.
    int row = 2 * blockIdx.x + place.row, real = min(row, a.rows - 1);
    const float* x = a.input + int64_t(a.gather ? a.gather[real] : real) * a.in_stride;
    lane_columns(a.units, place, [&](int k, int slot) {
        Eight v = eight(x, k, a.cols);
        if (slot < KEEP) kept[slot] = v;
        float s = unit_sum(v);
        if ((place.lane & 15) == 0) sums[place.row][k / UNIT] = s;
    });
    __syncthreads();
    float sum = 0.0f;
    for (int c = 0; c < a.units; c++) sum = __fadd_rn(sum, sums[place.row][c]);
    float inverse = inverse_norm(sum, a.cols, a.eps);
    auto normal = [&](Eight y, const Eight& w) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            y.low.v[i] = __fmul_rn(__fmul_rn(y.low.v[i], w.low.v[i]), inverse);
            y.high.v[i] = __fmul_rn(__fmul_rn(y.high.v[i], w.high.v[i]), inverse);
        }
        return y;
    };
#pragma unroll
    for (int i = 0; i < KEEP; i++) kept[i] = normal(kept[i], weight[i]);
    finish(row, place, kept, [&](int k) { return normal(eight(x, k, a.cols), eight(a.weight, k, a.cols)); });
}

extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
rmsnorm(const __grid_constant__ RowArgs a) {
    normalize(a, [&](int row, const LanePlace& place, const Eight (&kept)[KEEP], const auto& make) {
        write_row(a, row, place, kept, make);
    });
}

DEVICE void add_four(float* to, const Four& y, float factor) {
    const float4 x = *reinterpret_cast<const float4*>(to);
    *reinterpret_cast<float4*>(to) =
        make_float4(__fmul_rn(residual_sum(x.x, y.v[0]), factor), __fmul_rn(residual_sum(x.y, y.v[1]), factor),
                    __fmul_rn(residual_sum(x.z, y.v[2]), factor), __fmul_rn(residual_sum(x.w, y.v[3]), factor));
}

// Adds the norm of rows to `plain`, the residual stream, and multiplies the sums by `factor`.
extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
add_norm(const __grid_constant__ RowArgs a) {
    normalize(a, [&](int row, const LanePlace& place, const Eight (&kept)[KEEP], const auto& make) {
        if (row >= a.rows) return;
        lane_columns(a.units, place, [&](int k, int slot) {
            Eight y = slot < KEEP ? kept[slot] : make(k);
            float* to = a.plain + int64_t(row) * a.cols + k;
            if (k < a.cols) add_four(to, y.low, a.factor);
            if (k + 4 < a.cols) add_four(to + 4, y.high, a.factor);
        });
    });
}

template <bool BOUNDED, typename Make> DEVICE void scale_and_write(const RowArgs& a, const Make& make) {
    LanePlace place;
    launch_dependents();
    grid_dependency_wait();
    post_stage(a);
    int row = 2 * blockIdx.x + place.row;
    const float* x = a.input + int64_t(min(row, a.rows - 1)) * a.in_stride;
    Eight kept[KEEP];
    lane_columns<BOUNDED>(a.units, place, [&](int k, int slot) {
        if (slot < KEEP) kept[slot] = make(x, k);
    });
    write_row<BOUNDED>(a, row, place, kept, [&](int k) { return make(x, k); });
}

template <bool BOUNDED> DEVICE void scale_all(const RowArgs& a) {
    scale_and_write<BOUNDED>(a, [&](const float* x, int k) { return eight(x, k, a.cols); });
}
// OWN: up is its own gate.
template <bool BOUNDED, bool OWN = false> DEVICE void glu_all(const RowArgs& a) {
    scale_and_write<BOUNDED>(a, [&](const float* gate, int k) {
        Eight g = eight(gate, k, a.cols), u = OWN ? g : eight(gate + a.cols, k, a.cols);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            g.low.v[i] = glu(a.activation, g.low.v[i], u.low.v[i]);
            g.high.v[i] = glu(a.activation, g.high.v[i], u.high.v[i]);
        }
        return g;
    });
}

extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
scale_rows(const __grid_constant__ RowArgs a) { scale_all<false>(a); }
// Of rows that have a bound.
extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
scale_bounded_rows(const __grid_constant__ RowArgs a) { scale_all<true>(a); }
// `input` holds gate in its first `cols` columns and up behind them.
extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
glu_rows(const __grid_constant__ RowArgs a) { glu_all<false>(a); }
extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
glu_bounded_rows(const __grid_constant__ RowArgs a) { glu_all<true>(a); }
// `input` holds up alone.
extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
glu_own_rows(const __grid_constant__ RowArgs a) { glu_all<false, true>(a); }
extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
glu_own_bounded_rows(const __grid_constant__ RowArgs a) { glu_all<true, true>(a); }
