// What the rows of a step drew, as later kernels find it and as it goes to the host.
#pragma once
#include "argmax.cuh"

constexpr uint32_t NO_TOKEN = 0xFFFFFFFFu;  // a logit is not finite

// Of each row the ranks of the largest logits of its parts (argmax.cu), and perhaps apart from
// them whether a logit is not finite (decode_step.cu).
struct Answers {
    unsigned long long* best;  // [rows][parts]
    const uint32_t* broken;    // [rows] or null
    int parts;
};
LAYOUT(Answers, 24, AT(best, 0) AT(broken, 8) AT(parts, 16))

DEVICE uint32_t drawn(const Answers& a, int row) {
    if (a.broken && a.broken[row]) return NO_TOKEN;
    uint64_t largest = 0;
    for (int i = 0; i < a.parts; i++) {
        uint64_t rank = a.best[row * a.parts + i];
        largest = rank > largest ? rank : largest;
    }
    return largest == NOT_FINITE ? NO_TOKEN : ~uint32_t(largest);
}

DEVICE void keep_drawn(const Answers& a, int row, uint32_t token) {
    for (int i = 0; i < a.parts; i++) a.best[row * a.parts + i] = i == 0 ? uint64_t(~token) : 0;
}

struct AnswerArgs {
    Answers answers;
    uint32_t* out;  // [rows], pinned: there when the kernel has ended
    int rows;
};
LAYOUT(AnswerArgs, 40, AT(answers, 0) AT(out, 24) AT(rows, 32))
