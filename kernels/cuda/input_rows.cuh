// Rows of F16 as matmul_wgmma.cuh takes them.
//
// Unit -> eight rows -> piece -> row: 16 bytes, what one k16 step's half takes of a row. Piece 2s + h of a
// unit holds slots 8h .. 8h+7 of step s; which columns those are follows the weights (weights.cuh), so eight
// neighbouring columns go into four neighbouring pieces, and two rows fill a sector of 32 bytes.
//
// The power of two of a row is that of its largest value, or of a bound that is known when the model is loaded
// (device/cuda/bounds.rs): then nobody needs to have seen the whole row before a part of it is written.
#pragma once
#include "common.cuh"

// Of a power of two from 2^-126 to 2^126.
DEVICE float inverse_power(float power) { return __uint_as_float(0x7F000000u - __float_as_uint(power)); }

struct InputRows {
    __half* at;
    int groups;  // of eight rows
};

// Halves of eight rows of a unit.
constexpr int GROUP_HALVES = 8 * UNIT;

// Columns k and k + 1 of a row, the first of them even.
DEVICE uint32_t* pair_at(const InputRows& to, int row, int k) {
    const int64_t group = int64_t(k / UNIT) * to.groups + (row >> 3);
    const int piece = k % UNIT / CHUNK * 4 + k % 8 / 2;
    return reinterpret_cast<uint32_t*>(to.at + group * GROUP_HALVES + piece * 64 + (row & 7) * 8 + k % CHUNK / 8 * 2);
}

// Zeros in columns `cols` to `end` of a row, by `count` threads of which this is number `i`: weights there are zeros too, but
// what no one has written may be no number.
DEVICE void clear_columns(const InputRows& to, int row, int cols, int end, int i, int count) {
    for (int k = cols + 2 * i; k < end; k += 2 * count) *pair_at(to, row, k) = 0;
}
