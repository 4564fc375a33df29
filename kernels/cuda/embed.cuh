// Rows of the packed embedding table as F32, as the file defines them (products and sums rounded
// to F32, not to F16).
#pragma once
#include "weights.cuh"

struct EmbedArgs {
    const uint8_t* table;
    const Row* rows;
    float* x;
    int ty, units, cols;
};
LAYOUT(EmbedArgs, 40, AT(table, 0) AT(rows, 8) AT(x, 16) AT(ty, 24) AT(units, 28) AT(cols, 32))

DEVICE float weight_at(int type, const uint8_t* unit, int g, int k) {
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
    uint32_t q = *reinterpret_cast<const uint32_t*>(unit + 16 * lane + 4 * c);
    int code = (q >> (16 * (i & 1) + 4 * (i >> 1))) & 15;
    if (type == Q5_0 || type == Q5_1 || type == Q5_K) {
        uint32_t h = *reinterpret_cast<const uint32_t*>(unit + 512 + 4 * lane);
        code |= ((h >> (16 * (i & 1) + fifth_at(c, i >> 1))) & 1) << 4;
    }
    if (type == Q6_K) {
        uint32_t h = *reinterpret_cast<const uint32_t*>(unit + 512 + 8 * lane + 4 * (c >> 1));
        code |= ((h >> (16 * (i & 1) + top_at(c, i >> 1))) & 3) << 4;
        float scale = float(unit[768 + g * 8 + (t >> 1) * 4 + c] - 128);
        return __fmul_rn(__fmul_rn(half_of(832 + g * 2), scale), float(code - 32));
    }
    if (type == Q4_K || type == Q5_K) {
        int at = type == Q4_K ? 512 : 640;
        float s = __fmul_rn(half_of(at + 64 + g * 4), float(unit[at + g * 8 + 2 * c]));
        float m = __fmul_rn(half_of(at + 66 + g * 4), float(unit[at + g * 8 + 2 * c + 1]));
        return __fadd_rn(__fmul_rn(s, float(code)), m);
    }
    int at = type == Q4_0 || type == Q4_1 ? 512 : 640;
    float d = half_of(at + g * 8 + 2 * c);
    if (type == Q4_0) return __fmul_rn(d, float(code - 8));
    if (type == Q5_0) return __fmul_rn(d, float(code - 16));
    return __fadd_rn(__fmul_rn(d, float(code)), half_of(at + 64 + g * 8 + 2 * c));
}

// The row x[row][0 .. cols], by the threads of a block.
DEVICE void embed_row(const EmbedArgs& a, int row) {
    int token = a.rows[row].token;
    const uint8_t* tile = a.table + uint64_t(token / TILE_N) * a.units * unit_bytes(a.ty);
    for (int k = threadIdx.x; k < a.cols; k += blockDim.x)
        a.x[int64_t(row) * a.cols + k] =
            weight_at(a.ty, tile + (k / UNIT) * unit_bytes(a.ty), token % TILE_N, k % UNIT);
}
