// Inputs of a matmul, made of F32 rows: by RMS norm, plain scaling, or a gated linear unit (glu.cuh);
// then F16 under one power of two a row.
//
// Order: a row is cut into chunks of 128 columns, a chunk is summed by one warp (four columns a
// lane, then a butterfly), chunks are added in ascending order. A norm is x w first, then that over
// the root: so the largest value of a row is known without the root (step_inputs.cuh). Columns past
// the width are written as zero up to whole units.
#pragma once
#include "board.cuh"
#include "weights.cuh"

constexpr int MAX_CHUNKS = 512;  // 65536 columns

struct RowArgs {
    const float* input;    // [rows, in_stride]
    const int* gather;     // input row of each output row, or null
    const float* weight;   // of the norm
    float* plain;          // [rows, cols] the norm in F32, or null
    __half* out;           // [rows, units * 128], or packed
    float* scale;          // [rows] 2^e
    int cols, units, in_stride;
    float eps;
    int groups;            // of eight rows, in the layout of matmul_wgmma.cuh; 0: rows of k
    int rows;
    uint32_t stage;        // that these rows are the input of (board.cuh)
    int activation;        // of a gated linear unit
    uint32_t* board;
    __half* copy;          // [rows, units * 128] the same again in rows of k, or null
    float* copy_scale;     // [rows]
    float up;              // power of two of rows that have a bound
    float factor;          // of a sum in the residual stream
};
LAYOUT(RowArgs, 112, AT(input, 0) AT(gather, 8) AT(weight, 16) AT(plain, 24) AT(out, 32)
       AT(scale, 40) AT(cols, 48) AT(units, 52) AT(in_stride, 56) AT(eps, 60) AT(groups, 64)
       AT(rows, 68) AT(stage, 72) AT(activation, 76) AT(board, 80)
       AT(copy, 88) AT(copy_scale, 96) AT(up, 104) AT(factor, 108))

struct Four {
    float v[4];
};

// Columns k .. k+3; zero past the end.
DEVICE Four four(const float* row, int k, int cols) {
    Four f = {{0, 0, 0, 0}};
    if (k + 3 < cols) {
        float4 x = *reinterpret_cast<const float4*>(row + k);
        f = {{x.x, x.y, x.z, x.w}};
    }
    return f;
}

DEVICE float sum_of_squares(const Four& x) {
    float s = __fmul_rn(x.v[0], x.v[0]);
#pragma unroll
    for (int i = 1; i < 4; i++) s = __fmaf_rn(x.v[i], x.v[i], s);
    return s;
}
DEVICE float largest(const Four& x) {
    return fmaxf(fmaxf(fabsf(x.v[0]), fabsf(x.v[1])), fmaxf(fabsf(x.v[2]), fabsf(x.v[3])));
}
DEVICE float inverse_norm(float sum, int cols, float eps) {
    return rsqrtf(__fadd_rn(__fdividef(sum, float(cols)), eps));
}
