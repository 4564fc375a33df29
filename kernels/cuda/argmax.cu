// The kernel of argmax.cuh: several blocks a row, each of which reads its part of it once.
#pragma once
#include "argmax.cuh"
#include "hopper.cuh"

constexpr int ARGMAX_THREADS = 1024;

extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS) argmax(const __grid_constant__ ArgmaxArgs a) {
    __shared__ uint64_t best[32];
    launch_dependents();
    grid_dependency_wait();
    const float* row = a.logits + int64_t(blockIdx.x) * a.vocab;
    int part = (a.vocab + gridDim.y - 1) / gridDim.y, end = min(part * (int(blockIdx.y) + 1), a.vocab);
    float largest = -INFINITY;
    int id = -1;
    bool finite = true;
    // Eight loads under way a thread: latency is all there is.
    for (int start = part * blockIdx.y + threadIdx.x; start < end; start += 8 * blockDim.x) {
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int i = start + j * blockDim.x;
            v[j] = i < end ? row[i] : -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int i = start + j * blockDim.x;
            if (i >= end) break;
            finite &= bool(isfinite(v[j]));
            // Ids ascend: of equals, the first stays.
            if (v[j] > largest) largest = v[j], id = i;
        }
    }
    uint64_t mine = id < 0 ? 0 : rank(largest, id);
    finite = __syncthreads_and(finite);
    for (int d = 16; d > 0; d >>= 1) {
        uint64_t other = __shfl_xor_sync(~0u, mine, d);
        mine = other > mine ? other : mine;
    }
    if ((threadIdx.x & 31) == 0) best[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < blockDim.x / 32; w++) mine = best[w] > mine ? best[w] : mine;
    a.best[blockIdx.x * gridDim.y + blockIdx.y] = finite ? mine : NOT_FINITE;
}
