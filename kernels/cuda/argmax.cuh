// Greedy choice: the lowest id of the largest logits, and whether all of them are finite.
//
// An answer is packed into 64 bits (value as an
// ordered integer, then the complement of the id), so that a maximum in any order is the same
// maximum: who reads the answers takes the largest of a row.
#pragma once
#include "common.cuh"

struct ArgmaxArgs {
    const float* logits;  // [rows, vocab]
    uint64_t* best;       // [rows][blocks of a row]; NOT_FINITE where a logit is not finite
    int vocab;
};
LAYOUT(ArgmaxArgs, 24, AT(logits, 0) AT(best, 8) AT(vocab, 16))

// Above every rank: no finite value is all ones.
constexpr uint64_t NOT_FINITE = ~uint64_t(0);

// Larger floats are larger integers; ids break ties downwards. -0 counts as 0, as it does in
// the host's comparison.
DEVICE uint64_t rank(float v, uint32_t id) {
    uint32_t b = __float_as_uint(v == 0.0f ? 0.0f : v);
    b = b & 0x80000000u ? ~b : b | 0x80000000u;
    return uint64_t(b) << 32 | ~id;
}
