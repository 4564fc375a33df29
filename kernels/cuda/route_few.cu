// Norm, router and choice of very few rows in one launch, where a launch costs more than what it computes.
//
// Block (32, 16): a tile of the router, a warp one segment of it. Every block normalizes the rows for itself, in
// the order of norm.cuh: a warp has every 16th chunk of 128 columns. The block that is done last chooses.
// Routers are F32 in every file.
#pragma once
#include "norm.cuh"
#include "route.cu"

constexpr int FEW_WARPS = 16;
constexpr int FEW_ROWS = 4;

struct RouteFewArgs {
    RowArgs norm;  // of the stream; `copy` and `copy_scale` are written
    Part router;
    RouteArgs route;
};
LAYOUT(RouteFewArgs, 208, AT(norm, 0) AT(router, 104) AT(route, 136))

struct FewRows {
    float squares[FEW_ROWS][MAX_CHUNKS];
    float most[FEW_ROWS][FEW_WARPS];
    float scale[FEW_ROWS];
    float sums[MAX_SEGMENTS][FEW_ROWS][TILE_N];
};

// Four columns of a chunk, normalized.
DEVICE Four normalized(const RowArgs& a, const float* x, int k, float inverse) {
    Four v = four(x, k, a.cols);
    const Four w = four(a.weight, k, a.cols);
#pragma unroll
    for (int i = 0; i < 4; i++) v.v[i] = __fmul_rn(__fmul_rn(v.v[i], w.v[i]), inverse);
    return v;
}

// Rows as F16 under one power of two each, `x` [rows][units * 128]; one block leaves them for the experts, too.
DEVICE void normalize(const RowArgs& a, FewRows& few, __half* x) {
    const int warp = threadIdx.y, lane = threadIdx.x;
    for (int row = 0; row < a.rows; row++)
        for (int u = warp; u < a.units; u += FEW_WARPS) {
            const Four v = four(a.input + int64_t(row) * a.in_stride, u * UNIT + 4 * lane, a.cols);
            const float sum = warp_sum(sum_of_squares(v));
            if (lane == 0) few.squares[row][u] = sum;
        }
    __syncthreads();
    float inverse[FEW_ROWS];
#pragma unroll
    for (int row = 0; row < FEW_ROWS; row++) {
        if (row >= a.rows) break;
        float sum = 0.0f, max = 0.0f;
        for (int u = 0; u < a.units; u++) sum = __fadd_rn(sum, few.squares[row][u]);
        inverse[row] = inverse_norm(sum, a.cols, a.eps);
        const float* from = a.input + int64_t(row) * a.in_stride;
        for (int u = warp; u < a.units; u += FEW_WARPS)
            max = fmaxf(max, largest(normalized(a, from, u * UNIT + 4 * lane, inverse[row])));
        max = warp_max(max);
        if (lane == 0) few.most[row][warp] = max;
    }
    __syncthreads();
#pragma unroll
    for (int row = 0; row < FEW_ROWS; row++) {
        if (row >= a.rows) break;
        float max = 0.0f;
        for (int w = 0; w < FEW_WARPS; w++) max = fmaxf(max, few.most[row][w]);
        const int e = row_exponent(max);
        const float down = power_of_two(-e);
        if (lane == 0 && warp == 0) {
            few.scale[row] = power_of_two(e);
            if (blockIdx.x == 0) a.copy_scale[row] = power_of_two(e);
        }
        const float* from = a.input + int64_t(row) * a.in_stride;
        for (int u = warp; u < a.units; u += FEW_WARPS) {
            const Four v = normalized(a, from, u * UNIT + 4 * lane, inverse[row]);
            const uint2 halves = make_uint2(pack(__fmul_rn(v.v[0], down), __fmul_rn(v.v[1], down)),
                                            pack(__fmul_rn(v.v[2], down), __fmul_rn(v.v[3], down)));
            const int at = (row * a.units + u) * UNIT + 4 * lane;
            *reinterpret_cast<uint2*>(x + at) = halves;
            if (blockIdx.x == 0) *reinterpret_cast<uint2*>(a.copy + at) = halves;
        }
    }
    __syncthreads();
}

// Shared memory: rows [rows][units * 128].
DEVICE void route_few_rows(const RouteFewArgs& a) {
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ FewRows few;
    __shared__ bool is_last;
    using Router = Weights<F32>;
    __half* x = reinterpret_cast<__half*>(smem);
    const int rows = a.norm.rows, units = a.norm.units, segments = segments_of(units);
    const int segment = threadIdx.y;
    const uint8_t* tile = a.router.weight + int64_t(blockIdx.x) * units * unit_bytes(F32);
    Lane lane;
    launch_dependents();
    Router w[CHUNKS];
    auto load = [&](int u) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) w[c].template load<true>(tile + u * unit_bytes(F32), lane, c);
    };
    if (segment < segments) load(segment);
    grid_dependency_wait();
    if (blockIdx.x == 0 && threadIdx.x == 0 && segment == 0) post(a.norm.board + BOARD_STAGE, a.norm.stage);
    normalize(a.norm, few, x);
    if (segment < segments) {
        float d[4] = {};
        for (int u = segment; u < units; u += segments) {
            if (u > segment) load(u);
            const uint4 none = make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const __half* from = x + (lane.g * units + u) * UNIT + c * CHUNK + 8 * lane.t;
                const Rows row = {lane.g < rows ? *reinterpret_cast<const uint4*>(from) : none, none};
                multiply<F32>(d, row, w[c], 0);
            }
        }
        if (lane.g < rows)
            *reinterpret_cast<float2*>(&few.sums[segment][lane.g][2 * lane.t]) = make_float2(d[0], d[1]);
    }
    __syncthreads();
    const int thread = threadIdx.y * 32 + threadIdx.x, row = thread / TILE_N;
    const int column = blockIdx.x * TILE_N + thread % TILE_N;
    if (row < rows && column < a.router.rows) {
        float total = 0.0f;
        for (int s = 0; s < segments; s++) total = __fadd_rn(total, few.sums[s][row][thread % TILE_N]);
        const_cast<float*>(a.route.logits)[int64_t(row) * a.route.stride + column] = __fmul_rn(total, few.scale[row]);
    }
    // What the others wrote is seen by who comes last.
    __threadfence();
    __syncthreads();
    if (thread == 0) is_last = atomicAdd(a.route.to.counts + 1, 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (thread == 0) {
        a.route.to.counts[0] = rows * a.route.used;
        a.route.to.counts[1] = 0;
    }
    if (threadIdx.y < rows) choose_row(a.route, threadIdx.y, lane.id);
}

extern "C" __global__ void __launch_bounds__(32 * FEW_WARPS) route_few(const __grid_constant__ RouteFewArgs a) {
    route_few_rows(a);
}
