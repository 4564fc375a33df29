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
#pragma once
#include "norm.cu"

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

// Four neighbours, the first of them 32-byte aligned; false while one is missing.
DEVICE bool hear_four(Four& f, const Word* at, uint32_t number) {
    Word w[4];
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
        : "=l"(w[0]), "=l"(w[1]) : "l"(at) : "memory");
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
        : "=l"(w[2]), "=l"(w[3]) : "l"(at + 2) : "memory");
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        all &= number_in(w[i]) == number;
        f.v[i] = value_in(w[i]);
    }
    return all;
}
