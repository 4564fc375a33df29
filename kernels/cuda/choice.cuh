// The choice of a row's experts from its logits, by one warp.
//
// The lanes share the experts, so the sums of a row have one order whatever else is in the batch (cpu/routing.rs has
// the same choice: the most likely ones, of equals the lower index; by probabilities over all experts, by logits, of
// which the chosen ones alone become probabilities, or by scores).
#pragma once
#include "experts.cuh"

constexpr int MAX_EXPERTS = 512;

// What an expert's result is multiplied by. The model's description has the same names
// (kernels/src/reference/routing.rs). The host sends no other number.
enum Weighing : int {
    SOFTMAX = 0,       // its probability among all experts
    RENORMALIZED = 1,  // the same, divided by the sum of those of the chosen
    OF_CHOSEN = 2,     // its probability among the chosen
    SIGMOID = 3,       // the sigmoid of its own logit
    RENORMALIZED_SIGMOID = 4,  // the same, divided by the sum of those of the chosen
};

// Least divisor of weights, as in llama.cpp.
constexpr float LEAST_SUM = 0x1p-14f;

// Probabilities over all experts, of which a lane has PER logits, in the order of their bits, NaN above all; never zero.
template <int PER> DEVICE void rank_probabilities(float (&p)[PER], uint32_t (&rank)[PER]) {
    float max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; i++) max = fmaxf(max, p[i]);
    max = warp_max(max);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        p[i] = expf(__fsub_rn(p[i], max));
        sum = __fadd_rn(sum, p[i]);
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < PER; i++) rank[i] = (__float_as_uint(__fdiv_rn(p[i], sum)) & 0x7FFFFFFF) + 1;
}
DEVICE float probability_of(uint32_t rank) { return __uint_as_float(rank - 1); }

// A logit's rank among all numbers, NaN above all; never zero. The two zeros are equals.
DEVICE uint32_t rank_of_logit(float logit) {
    const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0f));
    if (logit != logit) return ~0u;
    return bits >> 31 ? ~bits : bits | 0x80000000;
}
DEVICE float logit_of(uint32_t rank) { return __uint_as_float(rank >> 31 ? rank & 0x7FFFFFFF : ~rank); }

// The largest of all lanes' ranks, and the expert that has it; of equals the lower one.
struct Top {
    uint32_t rank;
    int expert;
};
template <int PER> DEVICE Top top_of(const uint32_t (&rank)[PER], int lane) {
    uint32_t best = 0;
    int expert = lane;
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (rank[i] > best) best = rank[i], expert = 32 * i + lane;
    const uint32_t top = __reduce_max_sync(~0u, best);
    return {top, int(__reduce_min_sync(~0u, best == top ? expert : MAX_EXPERTS))};
}

// The choice among experts of which a lane has the logits of PER, 32 apart, from the most likely on. Choice c is written by
// lane c % 32. Past the last expert a logit is minus infinity.
template <int PER> DEVICE void choose_experts(float (&p)[PER], int experts, int used, int weighing, Choice* choices, int lane) {
    const bool of_chosen = weighing == OF_CHOSEN;
    uint32_t rank[PER];
    if (of_chosen) {
#pragma unroll
        for (int i = 0; i < PER; i++) rank[i] = rank_of_logit(p[i]);
    } else {
        rank_probabilities(p, rank);
    }
    // Zero is none, or taken.
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (32 * i + lane >= experts) rank[i] = 0;
    float total = 0.0f, largest = 0.0f;
#pragma unroll 1
    for (int c = 0; c < used; c++) {
        const auto [top, expert] = top_of(rank, lane);
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (32 * i + lane == expert) rank[i] = 0;
        // The first one's logit is the largest.
        if (of_chosen && c == 0) largest = logit_of(top);
        const float weight = of_chosen ? expf(__fsub_rn(logit_of(top), largest)) : probability_of(top);
        total = __fadd_rn(total, weight);
        if (lane == (c & 31)) choices[c] = {expert, weight};
    }
    if (weighing == SOFTMAX) return;
    for (int c = lane; c < used; c += 32) choices[c].weight = __fdiv_rn(choices[c].weight, total);
}

// The same by scores: probabilities over all experts, or sigmoids of logits, each with a bias that is not part of the weight.
// `bias` may be null. If a score is NaN, so are all weights.
template <int PER> DEVICE void choose_by_scores(float (&p)[PER], const float* bias, int experts, int used, int weighing, Choice* choices, int lane) {
    uint32_t rank[PER];
    if (weighing >= SIGMOID) {
#pragma unroll
        for (int i = 0; i < PER; i++) p[i] = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-p[i])));
    } else {
        rank_probabilities(p, rank);
#pragma unroll
        for (int i = 0; i < PER; i++) p[i] = probability_of(rank[i]);
    }
    bool is_broken = false;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int n = 32 * i + lane;
        rank[i] = 0;
        if (n >= experts) continue;
        const float score = bias ? __fadd_rn(p[i], bias[n]) : p[i];
        is_broken |= score != score;
        rank[i] = rank_of_logit(score);
    }
    is_broken = __any_sync(~0u, is_broken);
    float total = 0.0f;
#pragma unroll 1
    for (int c = 0; c < used; c++) {
        const int expert = top_of(rank, lane).expert;
        float weight = 0.0f;
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (32 * i + lane == expert) rank[i] = 0, weight = p[i];
        weight = __shfl_sync(~0u, weight, expert & 31);
        total = __fadd_rn(total, weight);
        if (lane == (c & 31)) choices[c] = {expert, is_broken ? NAN : weight};
    }
    if (weighing == SOFTMAX || weighing == SIGMOID) return;
    total = fmaxf(total, LEAST_SUM);
    for (int c = lane; c < used; c += 32) choices[c].weight = __fdiv_rn(choices[c].weight, total);
}
