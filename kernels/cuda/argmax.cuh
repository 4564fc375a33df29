// Greedy choice: the lowest id of the largest logits, and whether all of them are finite.
//
// A logit and its id are packed into 64 bits, the rank: the value as an ordered integer, then the
// complement of the id. So a maximum in any order is the same maximum, and the reader takes the largest
// rank of a row.
#pragma once
#include "common.cuh"

struct ArgmaxArgs {
    const float* logits;  // [rows, vocab]
    uint64_t* best;       // [rows][blocks of a row]; NOT_FINITE where a logit is not finite
    int vocab;
};
LAYOUT(ArgmaxArgs, 24, AT(logits, 0) AT(best, 8) AT(vocab, 16))

// A value above every rank: no finite logit is all ones.
constexpr uint64_t NOT_FINITE = ~uint64_t(0);

// The rank of a logit: larger floats are larger integers; ids break ties downwards. -0 counts as 0, as
// it does in the host's comparison.
DEVICE uint64_t rank(float v, uint32_t id) {
    uint32_t b = __float_as_uint(v == 0.0f ? 0.0f : v);
    b = b & 0x80000000u ? ~b : b | 0x80000000u;
    return uint64_t(b) << 32 | ~id;
}
