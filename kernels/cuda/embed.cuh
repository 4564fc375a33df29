// Rows of the packed embedding table as F32, as the file defines them (products and sums rounded
// to F32, not to F16, but for the scales of Q4_K and Q5_K: weights.cuh), times the model's scale.
#pragma once
#include "weights.cuh"

struct EmbedArgs {
    const uint8_t* table;
    const Row* rows;
    float* x;
    int ty, units, cols;
    float scale;  // of every value
};
LAYOUT(EmbedArgs, 40, AT(table, 0) AT(rows, 8) AT(x, 16) AT(ty, 24) AT(units, 28) AT(cols, 32) AT(scale, 36))

// The step in one launch knows fewer types (decode_step.rs), and has no registers for the others.
template <bool IN_STEP = false> DEVICE float weight_at(int type, const uint8_t* unit, int g, int k) {
    int c = k >> 5, t = (k >> 3) & 3, i = k & 7, lane = 4 * g + t;
    auto half_of = [&](int at) {
        return __half2float(*reinterpret_cast<const __half*>(unit + at));
    };
    if (type == F32) {
        int at = 1024 * c + 16 * lane + 2 * i;
        return __fadd_rn(half_of(at), half_of(at + 512));
    }
    if (type == F16 || type == BF16) return half_of(512 * c + 16 * lane + 2 * i);
    if (type == Q8_0) {
        int code = unit[512 * (c >> 1) + 16 * lane + 8 * (c & 1) + i];
        return __fmul_rn(half_of(1024 + g * 8 + 2 * c), float(code - 128));
    }
    auto word_of = [&](int at) { return *reinterpret_cast<const uint32_t*>(unit + at); };
    if (!IN_STEP && type == Q2_K) {
        int code = (word_of(8 * lane + 4 * (c >> 1)) >> (16 * (i & 1) + 8 * (c & 1) + 2 * (i >> 1))) & 3;
        uint32_t scales = word_of(256 + g * 8 + (t >> 1) * 4) >> 4 * c;
        float s = __fmul_rn(half_of(320 + g * 4), float(scales & 15));
        float m = __fmul_rn(half_of(322 + g * 4), float(scales >> 16 & 15));
        return __fadd_rn(__fmul_rn(s, float(code)), m);
    }
    if (!IN_STEP && (type == IQ4_NL || is_table(type))) {
        int nibble = (word_of(16 * lane + 4 * c) >> 4 * i) & 15;
        const uint8_t* table = unit + 592;
        int byte = type == IQ4_NL ? word(IQ4_TABLE, nibble >> 2) >> 8 * (nibble & 3) & 255 : table[nibble];
        float value = float(byte - 128);
        if (type == IQ4_NL) return __fmul_rn(half_of(512 + g * 8 + 2 * c), value);
        float scale = float(unit[512 + g * 8 + (t >> 1) * 4 + c] - 128) * (table[15] & 1 ? 0.25f : 0.125f);
        return __fmul_rn(__fmul_rn(half_of(576 + g * 2), scale), value);
    }
    uint32_t q = word_of(16 * lane + 4 * c);
    int code = (q >> (16 * (i & 1) + 4 * (i >> 1))) & 15;
    if (!IN_STEP && type == MXFP4) {
        // E2M1 as the top of an F16's fraction and the bottom of its exponent, and 2^14 times the scale.
        __half value = __ushort_as_half(uint16_t((code & 7) << 9 | (code & 8) << 12));
        __half scale = __ushort_as_half(uint16_t(unit[512 + g * 4 + c] << 8));
        return __fmul_rn(__half2float(value), __half2float(scale));
    }
    if (type == Q5_0 || type == Q5_1) {
        uint32_t h = *reinterpret_cast<const uint32_t*>(unit + 512 + 4 * lane);
        code |= ((h >> (16 * (i & 1) + fifth_at(c, i >> 1))) & 1) << 4;
    }
    if (type == Q6_K) {
        uint32_t h = *reinterpret_cast<const uint32_t*>(unit + 512 + 8 * lane + 4 * (c >> 1));
        code |= ((h >> (16 * (i & 1) + top_at(c, i >> 1))) & 3) << 4;
        float scale = float(unit[768 + g * 8 + (t >> 1) * 4 + c] - 128);
        return __fmul_rn(__fmul_rn(half_of(832 + g * 2), scale), float(code - 32));
    }
    int at = type == Q4_0 || type == Q4_1 ? 512 : 640;
    float d = half_of(at + g * 8 + 2 * c);
    if (type == Q4_0) return __fmul_rn(d, float(code - 8));
    if (type == Q5_0) return __fmul_rn(d, float(code - 16));
    return __fadd_rn(__fmul_rn(d, float(code)), half_of(at + 64 + g * 8 + 2 * c));
}

