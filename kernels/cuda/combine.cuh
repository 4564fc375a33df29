// What a row's experts made of it is added to the residual stream: the chosen in the order in which they
// were chosen, each times its weight, then the shared one, which may be weighted by the sigmoid of its own product, and that
// sum to what was there. Where a norm follows, the sum is stored instead.
#pragma once
#include "experts.cuh"

struct CombineArgs {
    Routing routing;
    const float* results;  // by place, [n_embd]
    const float* shared;   // [rows, n_embd] what the shared expert made, or null
    const float* logits;   // [rows, stride] of the router; the shared expert's, if it has one, is behind those of the others
    float* x;              // [rows, n_embd]
    int stride, experts, used, n_embd;
    int stores, gates_shared;
};
LAYOUT(CombineArgs, 96, AT(routing, 0) AT(results, 40) AT(shared, 48) AT(logits, 56) AT(x, 64)
       AT(stride, 72) AT(experts, 76) AT(used, 80) AT(n_embd, 84) AT(stores, 88) AT(gates_shared, 92))

DEVICE float weighted(float sum, float weight, float v) { return __fadd_rn(sum, __fmul_rn(weight, v)); }

DEVICE float shared_weight(const CombineArgs& a, int row) {
    if (!a.gates_shared) return 1.0f;
    const float logit = a.logits[int64_t(row) * a.stride + a.experts];
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-logit)));
}
