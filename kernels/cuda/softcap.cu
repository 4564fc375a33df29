// Scale and soft cap of logits, in place: cap * tanh(scale * x / cap), and NaN for a logit that is not finite, which the cap would
// hide. One thread a logit, F32.
#pragma once
#include "hopper.cuh"

struct SoftcapArgs {
    float* logits;
    uint64_t count;
    float cap;  // 0: none
    float scale;
};
LAYOUT(SoftcapArgs, 24, AT(logits, 0) AT(count, 8) AT(cap, 16) AT(scale, 20))

constexpr int SOFTCAP_THREADS = 256;

// By its series where the exponential function would lose digits.
DEVICE float tanh_of(float x) {
    const float a = fabsf(x), square = __fmul_rn(x, x);
    if (a < 0.25f) {
        float sum = 62.0f / 2835.0f;
        sum = __fmaf_rn(sum, square, -17.0f / 315.0f);
        sum = __fmaf_rn(sum, square, 2.0f / 15.0f);
        sum = __fmaf_rn(sum, square, -1.0f / 3.0f);
        return __fmaf_rn(__fmul_rn(sum, square), x, x);
    }
    const float t = __fsub_rn(1.0f, __fdiv_rn(2.0f, __fadd_rn(1.0f, expf(__fmul_rn(2.0f, a)))));
    return x < 0.0f ? -t : t;
}

extern "C" __global__ void __launch_bounds__(SOFTCAP_THREADS) softcap(const __grid_constant__ SoftcapArgs a) {
    launch_dependents();
    grid_dependency_wait();
    const uint64_t i = uint64_t(blockIdx.x) * SOFTCAP_THREADS + threadIdx.x;
    if (i >= a.count) return;
    const float x = __fmul_rn(a.scale, a.logits[i]);
    const float capped = a.cap == 0.0f ? x : __fmul_rn(a.cap, tanh_of(__fdiv_rn(x, a.cap)));
    a.logits[i] = isfinite(x) ? capped : NAN;
}
