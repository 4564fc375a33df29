// From F32 rows to the input of a matmul: RMS norm, plain scaling, or silu(gate) * up; then F16
// under one power of two a row. One block a row, a warp for each few units of it.
//
// Order: a row is cut into chunks of 128 columns, a chunk is summed by one warp (four columns a
// lane, then a butterfly), chunks are added in ascending order. Columns past the width are
// written as zero up to whole units. Reads 4 bytes a column (8 for silu_mul), writes 2; what a lane
// has read stays in its registers, unless a row is wider than KEEP chunks a warp.
#pragma once
#include "weights.cuh"

constexpr int ROW_THREADS = 256;
constexpr int MAX_CHUNKS = 512;  // 65536 columns

struct RowArgs {
    const float* in;       // [rows, in_stride]
    const int* gather;     // input row of each output row, or null
    const float* weight;   // of the norm
    float* plain;          // [rows, cols] the norm in F32, or null
    __half* out;           // [rows, units * 128], or packed
    float* scale;          // [rows] 2^e
    int cols, units, in_stride;
    float eps;
    int groups;            // of eight rows, in the layout of matmul_wgmma.cu; 0: rows of k
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
    return __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, float(cols)), eps));
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
#include "hopper.cuh"

constexpr int MAX_ROW_THREADS = 1024;
// Chunks of a row that a warp has in registers (mirrored in device/cuda/forward.rs).
constexpr int KEEP = 5;

// Columns k .. k+3 (k a multiple of four) as they go into a matmul.
//
// Packed: unit -> eight rows -> piece -> row: 16 bytes, what one k16 step's half takes of a row.
// Piece 2s + h of a unit holds slots 8h .. 8h+7 of step s; which columns those are follows the
// weights (weights.cuh), so four columns of a row go into two neighbouring pieces.
DEVICE void store_four(const RowArgs& a, int row, int k, uint2 h) {
    if (a.groups == 0) {
        *reinterpret_cast<uint2*>(a.out + int64_t(row) * a.units * UNIT + k) = h;
        return;
    }
    int piece = ((k >> 5) & 3) * 4 + ((k >> 2) & 1) * 2, t = (k >> 3) & 3;
    int64_t eight = int64_t(k / UNIT) * a.groups + (row >> 3);
    __half* at = a.out + (eight * 16 + piece) * 64 + (row & 7) * 8 + 2 * t;
    *reinterpret_cast<uint32_t*>(at) = h.x;
    *reinterpret_cast<uint32_t*>(at + 64) = h.y;
}

// What a lane keeps of its warp's chunks: warp, warp + warps, ...
struct Kept {
    Four v[KEEP];
};

// Calls `each(k, slot)` with the first of four columns; slot KEEP for those that are not kept.
template <typename Each> DEVICE void lane_columns(int units, const Each& each) {
    int warps = blockDim.x >> 5, chunk = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < KEEP; i++, chunk += warps)
        if (chunk < units) each(UNIT * chunk + 4 * lane, i);
    for (; chunk < units; chunk += warps) each(UNIT * chunk + 4 * lane, KEEP);
}

// `make(k)` gives columns that are not in `kept`; all of them are finished but for the scale.
template <typename Make>
DEVICE void write_row(const RowArgs& a, const Kept& kept, float* room, const Make& make) {
    int row = blockIdx.x;
    float max = 0.0f;
    lane_columns(a.units, [&](int k, int slot) {
        Four y = slot < KEEP ? kept.v[slot] : make(k);
        max = fmaxf(max, largest(y));
        if (a.plain && k < a.cols)
            *reinterpret_cast<float4*>(a.plain + int64_t(row) * a.cols + k) =
                make_float4(y.v[0], y.v[1], y.v[2], y.v[3]);
    });
    int e = row_exponent(block_max(max, room));
    float down = power_of_two(-e);
    if (threadIdx.x == 0) a.scale[row] = power_of_two(e);
    lane_columns(a.units, [&](int k, int slot) {
        Four y = slot < KEEP ? kept.v[slot] : make(k);
        store_four(a, row, k, make_uint2(pack(__fmul_rn(y.v[0], down), __fmul_rn(y.v[1], down)),
                                         pack(__fmul_rn(y.v[2], down), __fmul_rn(y.v[3], down))));
    });
}

extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
rmsnorm(const __grid_constant__ RowArgs a) {
    __shared__ float sums[MAX_CHUNKS], room[MAX_ROW_THREADS / 32];
    let_next_begin();
    Kept weight, kept;
    lane_columns(a.units, [&](int k, int slot) {
        if (slot < KEEP) weight.v[slot] = four(a.weight, k, a.cols);
    });
    wait_for_previous();
    int row = blockIdx.x;
    const float* x = a.in + int64_t(a.gather ? a.gather[row] : row) * a.in_stride;
    lane_columns(a.units, [&](int k, int slot) {
        Four v = four(x, k, a.cols);
        if (slot < KEEP) kept.v[slot] = v;
        float s = warp_sum(sum_of_squares(v));
        if ((threadIdx.x & 31) == 0) sums[k / UNIT] = s;
    });
    __syncthreads();
    float sum = 0.0f;
    for (int c = 0; c < a.units; c++) sum = __fadd_rn(sum, sums[c]);
    float inverse = inverse_norm(sum, a.cols, a.eps);
    auto normal = [&](Four y, const Four& w) {
#pragma unroll
        for (int i = 0; i < 4; i++) y.v[i] = __fmul_rn(__fmul_rn(y.v[i], inverse), w.v[i]);
        return y;
    };
#pragma unroll
    for (int i = 0; i < KEEP; i++) kept.v[i] = normal(kept.v[i], weight.v[i]);
    write_row(a, kept, room, [&](int k) {
        return normal(four(x, k, a.cols), four(a.weight, k, a.cols));
    });
}

template <typename Make> DEVICE void scale_and_write(const RowArgs& a, const Make& make) {
    __shared__ float room[MAX_ROW_THREADS / 32];
    let_next_begin();
    wait_for_previous();
    Kept kept;
    lane_columns(a.units, [&](int k, int slot) {
        if (slot < KEEP) kept.v[slot] = make(k);
    });
    write_row(a, kept, room, make);
}

extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
scale_rows(const __grid_constant__ RowArgs a) {
    const float* x = a.in + int64_t(blockIdx.x) * a.in_stride;
    scale_and_write(a, [&](int k) { return four(x, k, a.cols); });
}

// `in` holds gate in its first `cols` columns and up behind them.
extern "C" __global__ void __launch_bounds__(MAX_ROW_THREADS)
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
