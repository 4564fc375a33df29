// Code that every kernel shares: tensor-core step, exact conversions, reductions of one fixed order.
//
// The law of this folder: an output has one owner and one order of additions, given by its own
// indices and by the shape of the weight. Nothing here depends on how many rows run beside it.
// So no `a * b + c` is left to the compiler to contract: where the order of roundings matters,
// the intrinsics say it.
#pragma once
#include "layout.cuh"
#include <cuda_fp16.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__

// Weights and activations are cut along k into units; a warp multiplies one unit at a time.
constexpr int UNIT = 128;
// Columns of one tensor-core step pair: what 16 bytes of F16 a lane cover.
constexpr int CHUNK = 32;
constexpr int CHUNKS = UNIT / CHUNK;
// Weight rows of one tile: the n of mma.m16n8k16.
constexpr int TILE_N = 8;
// A weight's k is cut into at most this many segments, each with an accumulator of its own.
constexpr int MAX_SEGMENTS = 16;
// Units of a segment, at least, where k is longer than MAX_SEGMENTS units: the sums of a segment are
// added to the others while the tensor cores wait.
constexpr int LONG_SEGMENT = 4;

// Segments of a row: their number follows from the number of units alone (as in
// device/cuda/weights.rs), and is as small as it can be when none is longer than it must be.
DEVICE int segments_of(int units) {
    int length = (units + MAX_SEGMENTS - 1) / MAX_SEGMENTS;
    if (length > 1) length = max(length, LONG_SEGMENT);
    return (units + length - 1) / length;
}
// Segment s is the units s, s + segments, s + 2 segments, ...: units that lie behind each other
// belong to different segments, so warps that have one each read a weight as it lies. This walks
// all units, segment after segment.
struct Segments {
    int units, count;
    int segment, unit;

    Segments() = default;
    DEVICE Segments(int units, int first) : units(units), count(segments_of(units)), segment(first), unit(first) {}
    // Goes to the next unit; false when a segment has ended.
    DEVICE bool next() {
        unit += count;
        if (unit < units) return true;
        unit = ++segment;
        return false;
    }
};

// The same number, kept in a register: otherwise what is cheap is worked out or loaded again wherever it
// is used, in the middle of a chain.
DEVICE int kept(int v) {
    asm volatile("" : "+r"(v));
    return v;
}

// One lane's place in the fragments of mma.m16n8k16: row (or weight row) and quarter.
struct Lane {
    int id, g, t;
    DEVICE Lane() : id(threadIdx.x & 31), g((threadIdx.x & 31) >> 2), t(threadIdx.x & 3) {}
};

// d += a b. A is 16 x 16, B is 16 x 8 (n = 8 weight rows), d is 16 x 8.
DEVICE void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8 halves of shared memory; lane i has the address of row i % 8 of matrix i / 8.
DEVICE void load_matrices(uint32_t (&m)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(row) : "memory");
}
DEVICE void load_matrices(uint32_t (&m)[4], const void* row) {
    load_matrices(m, uint32_t(__cvta_generic_to_shared(row)));
}

// The residual stream's addition, as the second-level cache does it too: subnormal numbers are zero (PTX: red, add.ftz).
DEVICE float residual_sum(float old, float v) {
    float sum;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(old), "f"(v));
    return sum;
}
DEVICE void add_to_residual(float* at, float v) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(at), "f"(v) : "memory");
}

DEVICE uint32_t pack(float low, float high) {
    __half2 h = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&h);
}

DEVICE uint32_t bits(__half2 h) { return *reinterpret_cast<uint32_t*>(&h); }
DEVICE __half2 halves(uint32_t b) { return *reinterpret_cast<__half2*>(&b); }

// Sum over the warp in the order of a butterfly: every lane gets the same bits.
DEVICE float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

DEVICE float warp_max(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

// The exponent e of a row: 2^e <= |max| < 2^(e+1). Rows are multiplied by 2^-e before they become F16
// and products by 2^e after, both exact. Zero and subnormal rows get the smallest e.
DEVICE int row_exponent(float max) {
    int e = int((__float_as_uint(max) >> 23) & 255) - 127;
    return e < -126 ? -126 : (e > 126 ? 126 : e);
}
DEVICE float power_of_two(int e) { return __uint_as_float(uint32_t(e + 127) << 23); }

// A weight matrix, or a piece of a fused one, packed into tiles of 8 rows (weights.cuh).
struct Part {
    const uint8_t* weight;
    const float* bias;  // [rows] or null
    int rows;
    int tiles;   // ceil(rows / 8)
    int column;  // of the output at which its rows begin
    int ty;      // weights.cuh
};
LAYOUT(Part, 32, AT(weight, 0) AT(bias, 8) AT(rows, 16) AT(tiles, 20) AT(column, 24) AT(ty, 28))
constexpr int MAX_PARTS = 3;

// A token of the batch.
struct Row {
    int token, position;
    int table;  // where its sequence's page table begins
    int unused;
};
LAYOUT(Row, 16, AT(token, 0) AT(position, 4) AT(table, 8) AT(unused, 12))
