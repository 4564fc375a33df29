// y = W x + b over packed weights: what the kernels of every batch size share.
//
// One order for all of them. k is cut into segments by the weight's shape alone; a segment is one
// chain of tensor-core steps in ascending k from zero; segments are added to zero in ascending order;
// then the row's power of two, the bias, the residual. A kernel may give segments to different
// warps or walk them one after the other: the bits are the same.
#pragma once
#include "weights.cuh"

// Types that are multiplied; others are packed as one of them (weights.cuh).
#define EACH_QUANTIZED(M)                                                               \
    M(Q8_0) M(Q4_0) M(Q4_1) M(Q5_0) M(Q5_1) M(Q6_K) M(Q2_K) M(IQ4_NL) M(IQ4_XS) M(MXFP4)
#define EACH_TYPE(M) M(F32) M(F16) EACH_QUANTIZED(M)

struct MatmulArgs {
    Part parts[MAX_PARTS];  // of one type
    int n_parts;
    int rows, units, out_stride;
    int add;              // to what `out` holds, else overwrite
    float scale_of_all;   // rows, where there is no `scale`
    const __half* x;      // [rows, units * 128]
    const float* scale;   // [rows] or null
    float* out;           // [rows, out_stride]
};
LAYOUT(MatmulArgs, 144, AT(parts, 0) AT(n_parts, 96) AT(rows, 100) AT(units, 104)
       AT(out_stride, 108) AT(add, 112) AT(scale_of_all, 116) AT(x, 120) AT(scale, 128) AT(out, 136))

// The end of an output: the row's power of two, the bias, the residual.
DEVICE void epilogue(const MatmulArgs& a, const Part& p, int row, int n, float total) {
    if (n >= p.rows) return;
    float v = __fmul_rn(total, a.scale ? a.scale[row] : a.scale_of_all);
    if (p.bias) v = __fadd_rn(v, p.bias[n]);
    float* out = a.out + int64_t(row) * a.out_stride + p.column + n;
    *out = a.add ? residual_sum(*out, v) : v;
}
