// The kernel that writes drawn tokens to pinned memory, a thread a row.
//
// It is shorter than a copy, for which the device would change engines.
#pragma once
#include "drawn_tokens.cuh"

extern "C" __global__ void __launch_bounds__(256) tokens_to_host(const __grid_constant__ TokensToHostArgs a) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < a.rows) a.out[row] = drawn_token(a.drawn, row);
}
