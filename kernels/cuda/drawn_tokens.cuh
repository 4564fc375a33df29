// The tokens that the rows of a step drew, as later kernels find them and as they go to the host.
#pragma once
#include "argmax.cuh"

constexpr uint32_t NO_TOKEN = 0xFFFFFFFFu;  // a logit is not finite

// The ranks of the largest logits of each row's parts (argmax.cu), and perhaps beside them whether a
// logit is not finite (decode_step.cu).
struct DrawnTokens {
    unsigned long long* best;  // [rows][parts]
    const uint32_t* broken;    // [rows] or null
    int parts;
};
LAYOUT(DrawnTokens, 24, AT(best, 0) AT(broken, 8) AT(parts, 16))

DEVICE uint32_t drawn_token(const DrawnTokens& a, int row) {
    if (a.broken && a.broken[row]) return NO_TOKEN;
    uint64_t largest = 0;
    for (int i = 0; i < a.parts; i++) {
        uint64_t rank = a.best[row * a.parts + i];
        largest = rank > largest ? rank : largest;
    }
    return largest == NOT_FINITE ? NO_TOKEN : ~uint32_t(largest);
}

DEVICE void store_drawn_token(const DrawnTokens& a, int row, uint32_t token) {
    for (int i = 0; i < a.parts; i++) a.best[row * a.parts + i] = i == 0 ? uint64_t(~token) : 0;
}

struct TokensToHostArgs {
    DrawnTokens drawn;
    uint32_t* out;  // [rows], in pinned memory
    int rows;
};
LAYOUT(TokensToHostArgs, 40, AT(drawn, 0) AT(out, 24) AT(rows, 32))
