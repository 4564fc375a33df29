// The kernel of combine.cuh: a thread has four columns of a row.
#pragma once
#include "combine.cuh"

constexpr int COMBINE_THREADS = 256;

DEVICE void weigh(float (&sum)[4], float weight, const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    sum[0] = weighted(sum[0], weight, v.x);
    sum[1] = weighted(sum[1], weight, v.y);
    sum[2] = weighted(sum[2], weight, v.z);
    sum[3] = weighted(sum[3], weight, v.w);
}

extern "C" __global__ void __launch_bounds__(COMBINE_THREADS) combine(const __grid_constant__ CombineArgs a) {
    launch_dependents();
    grid_dependency_wait();
    const int row = blockIdx.x, column = (blockIdx.y * COMBINE_THREADS + threadIdx.x) * 4;
    if (column >= a.n_embd) return;
    const int first = row * a.used;
    float sum[4] = {};
    for (int c = 0; c < a.used; c++) {
        const int64_t place = a.routing.places[first + c];
        weigh(sum, a.routing.choices[first + c].weight, a.results + place * a.n_embd + column);
    }
    const int64_t at = int64_t(row) * a.n_embd + column;
    if (a.shared) weigh(sum, shared_weight(a, row), a.shared + at);
    if (a.stores) {
        *reinterpret_cast<float4*>(a.x + at) = make_float4(sum[0], sum[1], sum[2], sum[3]);
        return;
    }
    float4 x = *reinterpret_cast<const float4*>(a.x + at);
    x.x = residual_sum(x.x, sum[0]);
    x.y = residual_sum(x.y, sum[1]);
    x.z = residual_sum(x.z, sum[2]);
    x.w = residual_sum(x.w, sum[3]);
    *reinterpret_cast<float4*>(a.x + at) = x;
}
