// How blocks of one launch hand each other vectors without a barrier.
//
// A value travels with the number of the stage that made it, in one 8-byte word, which is written
// and read whole (PTX memory model: relaxed, gpu scope, naturally aligned). A reader asks for the
// words it needs until all carry the number it waits for: one trip to the second-level cache
// where a barrier of the grid and a read behind it take three.
//
// Numbers are never used twice between two clearings of the buffer (host: decode_step.rs), and a
// buffer is written again only by a stage that needs, directly or through others, everything that
// was read of it; so nobody waits for a number that was overwritten.
//
// Of 128 columns the words of columns 4i and 4i + 1 lie at 2i, those of 4i + 2 and 4i + 3 behind all
// of these: a lane takes four neighbours by two loads of two words, and either load of a warp is
// 512 bytes without a gap.
#pragma once
#include "norm.cuh"

typedef uint64_t Word;

DEVICE void tell(Word* at, float v, uint32_t number) {
    Word word = Word(number) << 32 | __float_as_uint(v);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}

DEVICE Word word_at(const Word* at) {
    Word word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
DEVICE uint32_t number_in(Word word) { return uint32_t(word >> 32); }
DEVICE float value_in(Word word) { return __uint_as_float(uint32_t(word)); }

constexpr int PAIRS_APART = UNIT / 2;
// Where column k of a row lies.
DEVICE uint32_t word_of(uint32_t k) {
    uint32_t lane = k / 4 % 32, pair = k / 2 % 2;
    return k / UNIT * UNIT + pair * PAIRS_APART + 2 * lane + k % 2;
}
// Words of a row.
DEVICE int row_words(int cols) { return (cols + UNIT - 1) / UNIT * UNIT; }

// Four neighbours, the first of them at `at` and its column a multiple of four; false while one is
// missing.
DEVICE bool hear_four(Four& f, const Word* at, uint32_t number) {
    Word w[4];
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
        : "=l"(w[0]), "=l"(w[1]) : "l"(at) : "memory");
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
        : "=l"(w[2]), "=l"(w[3]) : "l"(at + PAIRS_APART) : "memory");
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        all &= number_in(w[i]) == number;
        f.v[i] = value_in(w[i]);
    }
    return all;
}
