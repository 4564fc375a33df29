// The gated linear unit of a feed-forward part: activation(gate) * up.
//
// The model's description names the activation (kernels/src/activation.rs); a new one is a value and
// a case here. The host sends no other number.
#pragma once
#include "common.cuh"

enum Activation : int {
    SILU = 0,
};

DEVICE float silu(float g) { return __fdividef(g, __fadd_rn(1.0f, __expf(-g))); }

DEVICE float glu(int activation, float gate, float up) {
    switch (activation) {
        case SILU:
        default: return __fmul_rn(silu(gate), up);
    }
}
