// What the rows of a step drew, as later kernels find it and as it goes to the host.
#pragma once
#include "argmax.cu"

// One of two kinds: `chosen` as in argmax.cu, or else a `rank` and whether a logit is not finite.
struct Answers {
    uint32_t* chosen;
    unsigned long long* best;
    uint32_t* broken;
};

DEVICE uint32_t drawn(const Answers& a, int row) {
    if (a.chosen) return a.chosen[row];
    return a.broken[row] ? NOT_FINITE : ~uint32_t(a.best[row]);
}

struct AnswerArgs {
    Answers answers;
    uint32_t* out;  // [rows], pinned: there when the kernel has ended
    int rows;
};

#ifndef DEVICE_FUNCTIONS_ONLY
// A thread a row. Shorter than a copy, for which the device would change engines.
extern "C" __global__ void __launch_bounds__(256) answer(const __grid_constant__ AnswerArgs a) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (row < a.rows) a.out[row] = drawn(a.answers, row);
}
#endif
