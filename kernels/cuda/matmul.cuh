// y = W x + b over packed weights: what the kernels of every batch size share.
//
// One order for all of them. k is cut into segments by the weight's shape alone; a segment is one
// chain of tensor-core steps in ascending k from zero; segments are added to zero in ascending order;
// then the row's power of two, the bias, the residual. A kernel may give segments to different
// warps or walk them one after the other: the bits are the same.
#pragma once
#include "weights.cuh"

struct MatmulArgs {
    Part parts[MAX_PARTS];  // of one type
    int n_parts;
    int rows, units, out_stride;
    int add;              // to what `out` holds, else overwrite
    const __half* x;      // [rows, units * 128]
    const float* scale;   // [rows]
    float* out;           // [rows, out_stride]
};

DEVICE void put(const MatmulArgs& a, const Part& p, int row, int n, float total) {
    if (n >= p.rows) return;
    float v = __fmul_rn(total, a.scale[row]);
    if (p.bias) v = __fadd_rn(v, p.bias[n]);
    float* out = a.out + int64_t(row) * a.out_stride + p.column + n;
    *out = a.add ? __fadd_rn(*out, v) : v;
}
