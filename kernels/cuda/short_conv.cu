// Short convolutions (reference/short_conv.rs): what lies between the projections of a layer, as rows of norm.cuh. It takes the
// place of scale_rows in norm.cu.
//
// A projected row is the gates `b` of the input, the gates `c` of the output, and the input `x`, `cols` each. A unit is
// `channels` neighbouring columns; its row of a position, in the pages of states (states.cuh), is b * x. A lane has eight columns,
// all of one unit, and adds the positions from the present one backwards: those that this launch has from their projections, in
// the same product, and those before from the pages.
#pragma once
#include "norm.cu"
#include "states.cuh"

struct ShortConvArgs {
    RowArgs rows;  // input: the projected rows
    const Row* tokens;
    const StateRow* state_rows;
    const float* conv;  // [cols, kernel], the present position last
    StatePages states;
    int kernel, channels;
};
LAYOUT(ShortConvArgs, 184, AT(rows, 0) AT(tokens, 112) AT(state_rows, 120) AT(conv, 128) AT(states, 136) AT(kernel, 176)
       AT(channels, 180))

DEVICE void load_eight(const float* from, float (&v)[8]) {
    const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

// b * x of eight columns of a projected row.
DEVICE void conv_inputs(const float* projected, int k, int cols, float (&v)[8]) {
    float x[8];
    load_eight(projected + k, v);
    load_eight(projected + 2 * cols + k, x);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], x[i]);
}

DEVICE Eight convolve(const ShortConvArgs& a, const float* projected, int k) {
    const int cols = a.rows.cols;
    if (k >= cols) return {};
    // As in `scale_and_write`.
    const int row = min(int(2 * blockIdx.x + LanePlace().row), a.rows.rows - 1);
    const int position = a.tokens[row].position, slot = position % PAGE;
    const StateRow at = a.state_rows[row];
    const int unit = k / a.channels, column = k % a.channels;
    float* block = unit_at(a.states, at.pages, unit) + column;
    // The last rows of the block before, if the convolution sees them and this launch has not projected them.
    const int last = min(a.kernel - 1, position);
    const bool sees_before = last > slot && last > at.before;
    const float* before = sees_before ? unit_at(a.states, at.pages - a.states.groups, unit) + column : block;

    float sums[8] = {}, v[8];
    for (int back = 0; back <= last; back++) {
        if (back <= at.before) conv_inputs(projected - int64_t(back) * a.rows.in_stride, k, cols, v);
        else if (back <= slot) load_eight(block + (slot - back) * a.channels, v);
        else load_eight(before + (PAGE + slot - back) * a.channels, v);
        if (back == 0) {
            float4* to = reinterpret_cast<float4*>(block + slot * a.channels);
            to[0] = make_float4(v[0], v[1], v[2], v[3]);
            to[1] = make_float4(v[4], v[5], v[6], v[7]);
        }
        const float* weights = a.conv + int64_t(k) * a.kernel + a.kernel - 1 - back;
#pragma unroll
        for (int i = 0; i < 8; i++) sums[i] = __fmaf_rn(weights[i * a.kernel], v[i], sums[i]);
    }
    load_eight(projected + cols + k, v);
    Eight y;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        y.low.v[i] = __fmul_rn(v[i], sums[i]);
        y.high.v[i] = __fmul_rn(v[4 + i], sums[4 + i]);
    }
    return y;
}

extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS) short_conv_rows(const __grid_constant__ ShortConvArgs a) {
    scale_and_write<false>(a.rows, [&](const float* projected, int k) { return convolve(a, projected, k); });
}
