// Rows of norm.cuh that are multiplied by gates: outputs of attention by the sigmoid of theirs, and those of a delta net, after a
// norm of each head, by SiLU of theirs. They take the place of scale_rows in norm.cu. And the
// gated linear unit with gate and up in different places.
//
// A lane has eight columns of a row, all of one head. The squares of a head are added as a lane's eight, then by a butterfly
// over the head's lanes.
#pragma once
#include "norm.cu"

struct GatedRowsArgs {
    RowArgs rows;        // weight: of the norm of each head, [head_dim], or null
    const float* gates;
    int stride;          // of the gates of a row
    int head_dim;        // 16 to 256; with a norm a power of two up to 128
    int head_stride;     // from the gates of a head to those of the next
    int unused;
};
LAYOUT(GatedRowsArgs, 136, AT(rows, 0) AT(gates, 112) AT(stride, 120) AT(head_dim, 124) AT(head_stride, 128) AT(unused, 132))

DEVICE Eight gates_of(const GatedRowsArgs& a, int k) {
    // As in `scale_and_write`.
    const int row = min(int(2 * blockIdx.x + LanePlace().row), a.rows.rows - 1);
    const int head = k / a.head_dim, column = k % a.head_dim;
    if (k >= a.rows.cols) return {};
    return eight(a.gates + int64_t(row) * a.stride + head * a.head_stride, column, a.head_dim);
}

DEVICE float times_sigmoid(float x, float gate) { return __fdividef(x, __fadd_rn(1.0f, __expf(-gate))); }

// Of rows that have a bound: a sigmoid is at most 1.
extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS) gate_bounded_rows(const __grid_constant__ GatedRowsArgs a) {
    scale_and_write<true>(a.rows, [&](const float* x, int k) {
        Eight v = eight(x, k, a.rows.cols);
        const Eight gates = gates_of(a, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v.low.v[i] = times_sigmoid(v.low.v[i], gates.low.v[i]);
            v.high.v[i] = times_sigmoid(v.high.v[i], gates.high.v[i]);
        }
        return v;
    });
}

// Takes the place of glu_rows in norm.cu: `input` holds gate alone, and `gates` up, of one head of all columns.
extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS) glu_apart_rows(const __grid_constant__ GatedRowsArgs a) {
    scale_and_write<false>(a.rows, [&](const float* gate, int k) {
        Eight g = eight(gate, k, a.rows.cols);
        const Eight u = gates_of(a, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            g.low.v[i] = glu(a.rows.activation, g.low.v[i], u.low.v[i]);
            g.high.v[i] = glu(a.rows.activation, g.high.v[i], u.high.v[i]);
        }
        return g;
    });
}

extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS) gate_normal_rows(const __grid_constant__ GatedRowsArgs a) {
    scale_and_write<false>(a.rows, [&](const float* x, int k) {
        Eight v = eight(x, k, a.rows.cols);
        const Eight gates = gates_of(a, k), weight = eight(a.rows.weight, k % a.head_dim, a.head_dim);
        float sum = __fadd_rn(sum_of_squares(v.low), sum_of_squares(v.high));
        for (int d = 1; d < a.head_dim / 8; d <<= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, d));
        const float inverse = inverse_norm(sum, a.head_dim, a.rows.eps);
        auto gated = [&](float x, float w, float gate) { return __fmul_rn(__fmul_rn(__fmul_rn(x, inverse), w), silu(gate)); };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v.low.v[i] = gated(v.low.v[i], weight.low.v[i], gates.low.v[i]);
            v.high.v[i] = gated(v.high.v[i], weight.high.v[i], gates.high.v[i]);
        }
        return v;
    });
}
