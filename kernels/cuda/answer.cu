// The kernel of answer.cuh.
#pragma once
#include "answer.cuh"

// A thread a row. Shorter than a copy, for which the device would change engines.
extern "C" __global__ void __launch_bounds__(256) answer(const __grid_constant__ AnswerArgs a) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < a.rows) a.out[row] = drawn(a.answers, row);
}
