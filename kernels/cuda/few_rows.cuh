// The input of a product of very few rows, made by every block for itself: a launch costs more than that.
//
// A row is normalized, or taken as it is, in the order of norm.cuh: a warp has every so-many-th chunk of 128
// columns, squares of a chunk are summed by a warp, chunks are added in ascending order. Rows that are taken as they are
// have a bound (input_rows.cuh).
#pragma once
#include "input_rows.cuh"
#include "norm.cuh"

// Of kernels that make such rows. On Blackwell the compiler takes 64 registers where it is not told how many blocks there are, and
// spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define FEW_BOUNDS(THREADS) __launch_bounds__(THREADS, 1)
#else
#define FEW_BOUNDS(THREADS) __launch_bounds__(THREADS)
#endif

constexpr int FEW_ROWS = 4;
constexpr int MOST_FEW_WARPS = 16;

struct FewRows {
    float squares[FEW_ROWS][MAX_CHUNKS];
    float most[FEW_ROWS][MOST_FEW_WARPS];
    float scale[FEW_ROWS];
};

// Four columns of a chunk, finished but for the scale.
DEVICE Four finished(const RowArgs& a, int row, int k, float inverse) {
    Four v = four(a.input + int64_t(row) * a.in_stride, k, a.cols);
    if (!a.weight) return v;
    const Four w = four(a.weight, k, a.cols);
#pragma unroll
    for (int i = 0; i < 4; i++) v.v[i] = __fmul_rn(__fmul_rn(v.v[i], w.v[i]), inverse);
    return v;
}

// Chunks of a single row that a warp keeps in registers.
constexpr int FEW_CHUNKS = 4;

// A norm's weights, which nothing before this launch writes.
template <int WARPS> struct FewWeights {
    Four w[FEW_CHUNKS];
    DEVICE FewWeights(const RowArgs& a) {
#pragma unroll
        for (int i = 0; i < FEW_CHUNKS; i++) {
            const int u = threadIdx.y + i * WARPS;
            if (a.weight && a.rows == 1 && u < a.units) w[i] = four(a.weight, u * UNIT + 4 * threadIdx.x, a.cols);
        }
    }
};

// `make_few_rows` of a single row that the warps' registers have room for.
template <int WARPS>
DEVICE void make_one_row(const RowArgs& a, FewRows& few, __half* x, const FewWeights<WARPS>& weights) {
    const int warp = threadIdx.y, lane = threadIdx.x;
    const bool copies = a.copy && blockIdx.x == 0;
    Four v[FEW_CHUNKS];
#pragma unroll
    for (int i = 0; i < FEW_CHUNKS; i++) v[i] = four(a.input, (warp + i * WARPS) * UNIT + 4 * lane, a.cols);
    if (a.weight) {
#pragma unroll
        for (int i = 0; i < FEW_CHUNKS; i++) {
            const int u = warp + i * WARPS;
            if (u >= a.units) break;
            const float sum = warp_sum(sum_of_squares(v[i]));
            if (lane == 0) few.squares[0][u] = sum;
        }
        __syncthreads();
        float sum = 0.0f;
        for (int u = 0; u < a.units; u++) sum = __fadd_rn(sum, few.squares[0][u]);
        const float inverse = inverse_norm(sum, a.cols, a.eps);
#pragma unroll
        for (int i = 0; i < FEW_CHUNKS; i++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                if (warp + i * WARPS < a.units) v[i].v[n] = __fmul_rn(__fmul_rn(v[i].v[n], weights.w[i].v[n]), inverse);
            }
    }
    float down = a.up;
    if (a.weight) {
        float max = 0.0f;
#pragma unroll
        for (int i = 0; i < FEW_CHUNKS; i++) max = fmaxf(max, largest(v[i]));
        max = warp_max(max);
        if (lane == 0) few.most[0][warp] = max;
        __syncthreads();
        max = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) max = fmaxf(max, few.most[0][w]);
        down = power_of_two(-row_exponent(max));
    }
    if (lane == 0 && warp == 0) {
        few.scale[0] = inverse_power(down);
        if (copies) a.copy_scale[0] = inverse_power(down);
    }
#pragma unroll
    for (int i = 0; i < FEW_CHUNKS; i++) {
        const int u = warp + i * WARPS;
        if (u >= a.units) break;
        const uint2 halves = make_uint2(pack(__fmul_rn(v[i].v[0], down), __fmul_rn(v[i].v[1], down)),
                                        pack(__fmul_rn(v[i].v[2], down), __fmul_rn(v[i].v[3], down)));
        const int at = u * UNIT + 4 * lane;
        *reinterpret_cast<uint2*>(x + at) = halves;
        if (copies) *reinterpret_cast<uint2*>(a.copy + at) = halves;
    }
    __syncthreads();
}

// Rows as F16 under one power of two each, `x` [rows][units * 128]; where there is a copy, one block writes it.
template <int WARPS> DEVICE void make_few_rows(const RowArgs& a, FewRows& few, __half* x, const FewWeights<WARPS>& weights) {
    if (a.rows == 1 && a.units <= WARPS * FEW_CHUNKS) {
        make_one_row(a, few, x, weights);
        return;
    }
    // With few warps a warp has several chunks, whose loads are under way together.
    constexpr int AHEAD = WARPS < MOST_FEW_WARPS ? 4 : 1;
    const int warp = threadIdx.y, lane = threadIdx.x;
    const bool copies = a.copy && blockIdx.x == 0;
    if (a.weight) {
        for (int row = 0; row < a.rows; row++)
#pragma unroll AHEAD
            for (int u = warp; u < a.units; u += WARPS) {
                const float* from = a.input + int64_t(row) * a.in_stride;
                const float sum = warp_sum(sum_of_squares(four(from, u * UNIT + 4 * lane, a.cols)));
                if (lane == 0) few.squares[row][u] = sum;
            }
        __syncthreads();
    }
    float inverse[FEW_ROWS];
#pragma unroll
    for (int row = 0; row < FEW_ROWS; row++) {
        if (row >= a.rows) break;
        float sum = 0.0f, max = 0.0f;
        if (a.weight)
            for (int u = 0; u < a.units; u++) sum = __fadd_rn(sum, few.squares[row][u]);
        inverse[row] = inverse_norm(sum, a.cols, a.eps);
#pragma unroll AHEAD
        for (int u = warp; u < a.units; u += WARPS)
            max = fmaxf(max, largest(finished(a, row, u * UNIT + 4 * lane, inverse[row])));
        max = warp_max(max);
        if (lane == 0) few.most[row][warp] = max;
    }
    __syncthreads();
#pragma unroll
    for (int row = 0; row < FEW_ROWS; row++) {
        if (row >= a.rows) break;
        float max = 0.0f;
        for (int w = 0; w < WARPS; w++) max = fmaxf(max, few.most[row][w]);
        const float down = a.weight ? power_of_two(-row_exponent(max)) : a.up;
        if (lane == 0 && warp == 0) {
            few.scale[row] = inverse_power(down);
            if (copies) a.copy_scale[row] = inverse_power(down);
        }
#pragma unroll AHEAD
        for (int u = warp; u < a.units; u += WARPS) {
            const Four v = finished(a, row, u * UNIT + 4 * lane, inverse[row]);
            const uint2 halves = make_uint2(pack(__fmul_rn(v.v[0], down), __fmul_rn(v.v[1], down)),
                                            pack(__fmul_rn(v.v[2], down), __fmul_rn(v.v[3], down)));
            const int at = (row * a.units + u) * UNIT + 4 * lane;
            *reinterpret_cast<uint2*>(x + at) = halves;
            if (copies) *reinterpret_cast<uint2*>(a.copy + at) = halves;
        }
    }
    __syncthreads();
}

// What a tensor-core step takes of a chunk of such rows: the other rows are zero.
DEVICE Rows few_rows_at(const __half* x, int rows, int units, int unit, int chunk, const Lane& lane) {
    const uint4 none = make_uint4(0, 0, 0, 0);
    const __half* from = x + (lane.g * units + unit) * UNIT + chunk * CHUNK + 8 * lane.t;
    return {lane.g < rows ? *reinterpret_cast<const uint4*>(from) : none, none};
}
