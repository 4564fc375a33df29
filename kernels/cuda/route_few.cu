// Norm, router and choice of very few rows in one launch, where a launch costs more than what it computes.
//
// Block (32, 16): a tile of the router, a warp one segment of it. Every block normalizes the rows for itself
// (few_rows.cuh). The block that is done last chooses. Routers are F32 in every file.
#pragma once
#include "few_rows.cuh"
#include "route.cu"

constexpr int FEW_WARPS = 16;

struct RouteFewArgs {
    RowArgs norm;  // of the stream; `copy` and `copy_scale` are written
    Part router;
    RouteArgs route;
};
LAYOUT(RouteFewArgs, 248, AT(norm, 0) AT(router, 112) AT(route, 144))

// Shared memory: rows [rows][units * 128].
template <bool BY_SCORES> DEVICE void route_few_rows(const RouteFewArgs& a) {
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ FewRows few;
    __shared__ float sums[MAX_SEGMENTS][FEW_ROWS][TILE_N];
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
    const FewWeights<FEW_WARPS> weights(a.norm);
    grid_dependency_wait();
    if (blockIdx.x == 0 && threadIdx.x == 0 && segment == 0) post(a.norm.board + BOARD_STAGE, a.norm.stage);
    make_few_rows(a.norm, few, x, weights);
    if (segment < segments) {
        float d[4] = {};
        for (int u = segment; u < units; u += segments) {
            if (u > segment) load(u);
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) multiply<F32>(d, few_rows_at(x, rows, units, u, c, lane), w[c], 0);
        }
        if (lane.g < rows)
            *reinterpret_cast<float2*>(&sums[segment][lane.g][2 * lane.t]) = make_float2(d[0], d[1]);
    }
    __syncthreads();
    const int thread = threadIdx.y * 32 + threadIdx.x, row = thread / TILE_N;
    const int column = blockIdx.x * TILE_N + thread % TILE_N;
    if (row < rows && column < a.router.rows) {
        float total = 0.0f;
        for (int s = 0; s < segments; s++) total = __fadd_rn(total, sums[s][row][thread % TILE_N]);
        float logit = __fmul_rn(total, few.scale[row]);
        if (a.router.bias) logit = __fadd_rn(logit, a.router.bias[column]);
        const_cast<float*>(a.route.logits)[int64_t(row) * a.route.stride + column] = logit;
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
    if (threadIdx.y < rows) choose_row<BY_SCORES>(a.route, threadIdx.y, lane.id);
}

extern "C" __global__ void FEW_BOUNDS(32 * FEW_WARPS) route_few(const __grid_constant__ RouteFewArgs a) {
    route_few_rows<false>(a);
}
extern "C" __global__ void FEW_BOUNDS(32 * FEW_WARPS) route_few_by_scores(const __grid_constant__ RouteFewArgs a) {
    route_few_rows<true>(a);
}
