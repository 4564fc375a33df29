// The gated linear unit of a feed-forward part: activation(gate) * up.
//
// The model's description names the activation (kernels/src/activation.rs); a new one is a value and
// a case here. The host sends no other number.
#pragma once
#include "common.cuh"

enum Activation : int {
    SILU = 0,
    GELU = 1,
    CLAMPED_SWIGLU = 2,
    RELU = 3,
};

DEVICE float silu(float g) { return __fdividef(g, __fadd_rn(1.0f, __expf(-g))); }

// -2 sqrt(2 / pi) (g + 0.044715 g^3) is what is exponentiated (kernels/src/activation.rs).
DEVICE float gelu(float g) {
    float cubed = __fmul_rn(__fmul_rn(g, g), g);
    return __fdividef(g, __fadd_rn(1.0f, __expf(__fmul_rn(-1.5957691216f, __fmaf_rn(0.044715f, cubed, g)))));
}

constexpr float SWIGLU_ALPHA = 1.702f;
constexpr float SWIGLU_LIMIT = 7.0f;

// The whole unit. Not fminf and fmaxf, which would make a number of a NaN.
DEVICE float clamped_swiglu(float gate, float up) {
    gate = gate > SWIGLU_LIMIT ? SWIGLU_LIMIT : gate;
    up = up > SWIGLU_LIMIT ? SWIGLU_LIMIT : up;
    up = up < -SWIGLU_LIMIT ? -SWIGLU_LIMIT : up;
    const float half = __fdividef(gate, __fadd_rn(1.0f, __expf(__fmul_rn(-SWIGLU_ALPHA, gate))));
    return __fmul_rn(half, __fadd_rn(up, 1.0f));
}

// It is at most 7 times 8: such values are multiplied by this power of two before they become F16, whatever the others of their
// row are, and products of them by its inverse.
constexpr int SWIGLU_LOG_UP = 9;
constexpr float SWIGLU_UP = 1 << SWIGLU_LOG_UP;
static_assert(SWIGLU_LIMIT * (SWIGLU_LIMIT + 1.0f) * SWIGLU_UP < 32768.0f);

// Not fmaxf, which would make a number of a NaN.
DEVICE float relu(float g) { return g < 0.0f ? 0.0f : g; }

DEVICE float glu(int activation, float gate, float up) {
    switch (activation) {
        case RELU: return __fmul_rn(relu(gate), up);
        case CLAMPED_SWIGLU: return clamped_swiglu(gate, up);
        case GELU: return __fmul_rn(gelu(gate), up);
        case SILU:
        default: return __fmul_rn(silu(gate), up);
    }
}
