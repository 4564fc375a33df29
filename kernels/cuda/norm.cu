// From F32 rows to the input of a matmul: RMS norm, plain scaling, or silu(gate) * up; then F16
// under one power of two a row. One block of 256 threads a row.
//
// Order: a row is cut into chunks of 128 columns, a chunk is summed by one warp (four columns a
// lane, then a butterfly), chunks are added in ascending order. Columns past the width are
// written as zero up to whole units. Reads 4 bytes a column (8 for silu_mul), writes 2.
#pragma once
#include "weights.cuh"

constexpr int ROW_THREADS = 256;
constexpr int MAX_CHUNKS = 512;  // 65536 columns

struct RowArgs {
    const float* in;       // [rows, in_stride]
    const int* gather;     // input row of each output row, or null
    const float* weight;   // of the norm
    float* plain;          // [rows, cols] the norm in F32, or null
    __half* out;           // [rows, units * 128]
    float* scale;          // [rows] 2^e
    int cols, units, in_stride;
    float eps;
};

struct Four {
    float v[4];
};

// Four columns from k on; zero past the end.
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

DEVICE float block_max(float v, float* room) {
    int warp = threadIdx.x >> 5;
    v = warp_max(v);
    if ((threadIdx.x & 31) == 0) room[warp] = v;
    __syncthreads();
    v = room[0];
    for (int w = 1; w < blockDim.x / 32; w++) v = fmaxf(v, room[w]);
    return v;
}

#ifndef DEVICE_FUNCTIONS_ONLY
// VALUE(k) gives columns k .. k+3 of the row, finished but for the scale.
template <typename Value>
DEVICE void write_row(const RowArgs& a, int row, float max, const Value& value) {
    int e = row_exponent(max);
    float down = power_of_two(-e);
    if (threadIdx.x == 0) a.scale[row] = power_of_two(e);
    for (int k = 4 * threadIdx.x; k < a.units * UNIT; k += 4 * ROW_THREADS) {
        Four y = value(k);
        uint2 h = make_uint2(pack(__fmul_rn(y.v[0], down), __fmul_rn(y.v[1], down)),
                             pack(__fmul_rn(y.v[2], down), __fmul_rn(y.v[3], down)));
        *reinterpret_cast<uint2*>(a.out + int64_t(row) * a.units * UNIT + k) = h;
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
rmsnorm(const __grid_constant__ RowArgs a) {
    __shared__ float sums[MAX_CHUNKS], room[ROW_THREADS / 32];
    int row = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float* x = a.in + int64_t(a.gather ? a.gather[row] : row) * a.in_stride;
    for (int c = warp; c < a.units; c += ROW_THREADS / 32) {
        float s = warp_sum(sum_of_squares(four(x, UNIT * c + 4 * lane, a.cols)));
        if (lane == 0) sums[c] = s;
    }
    __syncthreads();
    float sum = 0.0f;
    for (int c = 0; c < a.units; c++) sum = __fadd_rn(sum, sums[c]);
    float inverse = inverse_norm(sum, a.cols, a.eps);
    auto value = [&](int k) {
        Four y = four(x, k, a.cols), w = four(a.weight, k, a.cols);
#pragma unroll
        for (int i = 0; i < 4; i++) y.v[i] = __fmul_rn(__fmul_rn(y.v[i], inverse), w.v[i]);
        return y;
    };
    float max = 0.0f;
    for (int k = 4 * threadIdx.x; k < a.cols; k += 4 * ROW_THREADS) {
        Four y = value(k);
        max = fmaxf(max, largest(y));
        if (a.plain)
            *reinterpret_cast<float4*>(a.plain + int64_t(row) * a.cols + k) =
                make_float4(y.v[0], y.v[1], y.v[2], y.v[3]);
    }
    write_row(a, row, block_max(max, room), value);
}

template <typename Value> DEVICE void scale_and_write(const RowArgs& a, const Value& value) {
    __shared__ float room[ROW_THREADS / 32];
    float max = 0.0f;
    for (int k = 4 * threadIdx.x; k < a.cols; k += 4 * ROW_THREADS)
        max = fmaxf(max, largest(value(k)));
    write_row(a, blockIdx.x, block_max(max, room), value);
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
scale_rows(const __grid_constant__ RowArgs a) {
    const float* x = a.in + int64_t(blockIdx.x) * a.in_stride;
    scale_and_write(a, [&](int k) { return four(x, k, a.cols); });
}

// `in` holds gate in its first `cols` columns and up behind them.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
silu_mul_rows(const __grid_constant__ RowArgs a) {
    const float* gate = a.in + int64_t(blockIdx.x) * a.in_stride;
    scale_and_write(a, [&](int k) {
        Four g = four(gate, k, a.cols), u = four(gate + a.cols, k, a.cols);
#pragma unroll
        for (int i = 0; i < 4; i++) g.v[i] = silu_mul(g.v[i], u.v[i]);
        return g;
    });
}
#endif
