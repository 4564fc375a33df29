// How far the outputs of a weight can be from zero, when its input comes from a norm.
//
// A normalized row is at most sqrt(columns) long before it is multiplied by the norm's weights, so by Cauchy and Schwarz
// |w y| <= sqrt(columns) |w * norm|, and a bias may be added. An output of a gated linear unit is at most the product of the
// bounds of its gate and its up, for |silu(g)|, |gelu(g)| and relu(g) are at most |g|. Rounding is not reckoned with: whoever takes
// the bound leaves room for it (device/cuda/bounds.rs).
//
// Squares are given, and of a sum with a bias twice the sum of both squares. A block a tile, in an order that each device
// shares. Read once, when a model is loaded.
#pragma once
#include "embed.cuh"

constexpr int BOUND_WARPS = 8;

struct BoundArgs {
    Part parts[2];       // gate and up, or one matrix
    const float* norm;   // [cols]
    uint32_t* squares;   // bits of the square of each tile's largest bound
    int n_parts, units, cols, unused;
};
LAYOUT(BoundArgs, 96, AT(parts, 0) AT(norm, 64) AT(squares, 72) AT(n_parts, 80) AT(units, 84) AT(cols, 88) AT(unused, 92))

// The square of the bound of row `threadIdx.x` of a tile, for the first threads of a block.
DEVICE float bound_of(const BoundArgs& a, const Part& part, float (&sums)[BOUND_WARPS][TILE_N]) {
    Lane lane;
    const int warp = threadIdx.x / 32, bytes = unit_bytes(part.ty);
    const uint8_t* tile = part.weight + int64_t(blockIdx.x) * a.units * bytes;
    float sum = 0.0f;
    for (int u = warp; u < a.units; u += BOUND_WARPS)
#pragma unroll 1
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll 4
            for (int i = 0; i < 8; i++) {
                const int k = CHUNK * c + 8 * lane.t + i, column = u * UNIT + k;
                if (column >= a.cols) continue;
                const float w = __fmul_rn(weight_at(part.ty, tile + u * bytes, lane.g, k), a.norm[column]);
                sum = __fmaf_rn(w, w, sum);
            }
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    if (lane.t == 0) sums[warp][lane.g] = sum;
    __syncthreads();
    const int row = blockIdx.x * TILE_N + threadIdx.x;
    if (threadIdx.x >= TILE_N || row >= part.rows) return 0.0f;
    float all = 0.0f;
    for (int w = 0; w < BOUND_WARPS; w++) all = __fadd_rn(all, sums[w][threadIdx.x]);
    const float square = __fmul_rn(float(a.cols), all);
    if (!part.bias) return square;
    const float bias = part.bias[row];
    return __fmul_rn(2.0f, __fmaf_rn(bias, bias, square));
}

extern "C" __global__ void __launch_bounds__(32 * BOUND_WARPS) bound(const __grid_constant__ BoundArgs a) {
    __shared__ float sums[2][BOUND_WARPS][TILE_N];
    float square = bound_of(a, a.parts[0], sums[0]);
    if (a.n_parts == 2) square = __fmul_rn(square, bound_of(a, a.parts[1], sums[1]));
    if (threadIdx.x >= 32) return;
    // What is no number has larger bits than all numbers.
    const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(square));
    if (threadIdx.x == 0) a.squares[blockIdx.x] = most;
}
