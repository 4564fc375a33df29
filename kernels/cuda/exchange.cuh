// Vectors that blocks of one launch publish to each other without a barrier of the grid.
//
// A value, or two as halves, and the tag of the stage that made it lie in one 8-byte word, which is written and read whole
// (PTX memory model: relaxed, gpu scope, naturally aligned). A reader polls the words that it needs until
// all carry the tag it waits for. That is one trip to the second-level cache; a barrier of the grid and a
// read behind it take three.
//
// A tag is never used twice between two clearings of the buffer (host: device/cuda/tags.rs). A buffer is
// overwritten only by a stage whose own inputs depend, directly or through other stages, on everything
// that was read from it. So no reader waits for a tag that was overwritten.
//
// In a unit of 128 columns the words of columns 4i and 4i + 1 lie at 2i, those of 4i + 2 and 4i + 3 in the
// second half of the unit: a lane takes four neighbours by two loads of two words, and each load of a
// warp is 512 bytes without a gap.
#pragma once
#include "norm.cuh"

typedef uint64_t Word;

DEVICE void publish_bits(Word* at, uint32_t bits, uint32_t tag) {
    Word word = Word(tag) << 32 | bits;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
DEVICE void publish(Word* at, float v, uint32_t tag) { publish_bits(at, __float_as_uint(v), tag); }

DEVICE Word load_word(const Word* at) {
    Word word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
// Two words that lie behind each other, the first at an even place.
DEVICE void publish_two(Word* at, float v, float w, uint32_t tag) {
    Word one = Word(tag) << 32 | __float_as_uint(v), two = Word(tag) << 32 | __float_as_uint(w);
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(one), "l"(two) : "memory");
}
DEVICE void load_two_words(Word (&w)[2], const Word* at) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(w[0]), "=l"(w[1]) : "l"(at) : "memory");
}
DEVICE uint32_t tag_in(Word word) { return uint32_t(word >> 32); }
DEVICE float value_in(Word word) { return __uint_as_float(uint32_t(word)); }

constexpr int PAIRS_APART = UNIT / 2;
// The index of column k's word in a row.
DEVICE uint32_t word_index(uint32_t k) {
    uint32_t lane = k / 4 % 32, pair = k / 2 % 2;
    return k / UNIT * UNIT + pair * PAIRS_APART + 2 * lane + k % 2;
}
// A vector whose power of two is known (input_rows.cuh) is published as halves, as products take them, two neighbours in a
// word: the index of that of columns k and k + 1, where k is even. A unit has as much room as one of values.
DEVICE uint32_t halves_index(uint32_t k) { return k / UNIT * UNIT + k % UNIT / 2; }
// Words of a row.
DEVICE int row_words(int cols) { return (cols + UNIT - 1) / UNIT * UNIT; }

// Four neighbours, the first of them at `at` and its column a multiple of four; false while the tag of one
// is another.
DEVICE bool poll_four(Four& f, const Word* at, uint32_t tag) {
    Word w[2][2];
    load_two_words(w[0], at);
    load_two_words(w[1], at + PAIRS_APART);
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        all &= tag_in(w[i / 2][i % 2]) == tag;
        f.v[i] = value_in(w[i / 2][i % 2]);
    }
    return all;
}
