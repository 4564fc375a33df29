// Which experts a row uses, and how much of each; then the rows of each expert.
//
// A warp has a row (choice.cuh). The block that is done last
// sorts all pairs of row and expert by expert, rows ascending: each warp counts a part of them, the parts are added
// up, and each warp puts its own in place. Where shares are of one row there is nothing to sort.
#pragma once
#include "choice.cuh"

constexpr int ROUTE_THREADS = 256;
constexpr int ROUTE_WARPS = ROUTE_THREADS / 32;

struct RouteArgs {
    const float* logits;  // [rows, stride]
    Routing to;
    int stride, rows;
    int experts, used;
    int weighing;
    int share_rows;   // rows of a share, at most
    int place_group;  // places of an expert begin at a multiple of it, and shares but the last are multiples of it
    float factor;     // of the logits
    const float* scales;  // [experts] of the outputs, or null
    const float* choice_bias;  // [experts] added to scores for the choice only, or null
    float scale;      // of the weights
    int unused;
};
LAYOUT(RouteArgs, 104, AT(logits, 0) AT(to, 8) AT(stride, 48) AT(rows, 52) AT(experts, 56) AT(used, 60)
       AT(weighing, 64) AT(share_rows, 68) AT(place_group, 72) AT(factor, 76) AT(scales, 80) AT(choice_bias, 88)
       AT(scale, 96) AT(unused, 100))

// PER experts a lane, 32 apart. Logits may have been written by other blocks of this launch. BY_SCORES: as choose_by_scores, in a
// kernel of its own, since its registers and code would slow down the other choice.
template <int PER, bool BY_SCORES> DEVICE void choose(const RouteArgs& a, int row, int lane) {
    const float* logits = a.logits + int64_t(row) * a.stride;
    float p[PER];
#pragma unroll
    for (int i = 0; i < PER; i++)
        p[i] = 32 * i + lane < a.experts ? __fmul_rn(__ldcg(logits + 32 * i + lane), a.factor) : -INFINITY;
    Choice* choices = a.to.choices + int64_t(row) * a.used;
    if constexpr (BY_SCORES)
        choose_by_scores(p, a.choice_bias, a.experts, a.used, a.weighing, choices, lane);
    else
        choose_experts(p, a.experts, a.used, a.weighing, choices, lane);
    // Written by this lane, as below.
    for (int c = lane; (a.scales || a.scale != 1.0f) && c < a.used; c += 32) {
        const float scale = a.scales ? a.scales[choices[c].expert] : 1.0f;
        choices[c].weight = __fmul_rn(__fmul_rn(choices[c].weight, scale), a.scale);
    }
    if (a.share_rows > 1) return;
    for (int c = lane; c < a.used; c += 32) {
        const int place = row * a.used + c;
        a.to.places[place] = place;
        a.to.rows[place] = row;
        a.to.shares[place] = {choices[c].expert, place, 1};
    }
}

template <bool BY_SCORES> DEVICE void choose_row(const RouteArgs& a, int row, int lane) {
    if (a.experts <= 128) choose<4, BY_SCORES>(a, row, lane);
    else choose<MAX_EXPERTS / 32, BY_SCORES>(a, row, lane);
}

struct Sort {
    // Of each warp's part of the pairs: how many each expert has, then where its next one goes.
    int next[ROUTE_WARPS][MAX_EXPERTS];
    int count[MAX_EXPERTS], first[MAX_EXPERTS], first_share[MAX_EXPERTS];
};

// Places that an expert takes of so many pairs.
DEVICE int places_of(const RouteArgs& a, int pairs) { return (pairs + a.place_group - 1) / a.place_group * a.place_group; }

// The experts' places and shares one behind the other, by one warp.
DEVICE void line_up(const RouteArgs& a, Sort& sort, int lane) {
    const int per = (a.experts + 31) / 32, begin = lane * per, end = min(begin + per, a.experts);
    int places = 0, shares = 0;
    for (int e = begin; e < end; e++) {
        places += places_of(a, sort.count[e]);
        shares += (sort.count[e] + a.share_rows - 1) / a.share_rows;
    }
    int place = places, share = shares;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const int p = __shfl_up_sync(~0u, place, d), s = __shfl_up_sync(~0u, share, d);
        if (lane >= d) place += p, share += s;
    }
    if (lane == 31) a.to.counts[0] = share;
    place -= places;
    share -= shares;
    for (int e = begin; e < end; e++) {
        sort.first[e] = place;
        sort.first_share[e] = share;
        place += places_of(a, sort.count[e]);
        share += (sort.count[e] + a.share_rows - 1) / a.share_rows;
    }
}

DEVICE void sort_by_expert(const RouteArgs& a, Sort& sort) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, pairs = a.rows * a.used;
    const int part = (pairs + 32 * ROUTE_WARPS - 1) / (32 * ROUTE_WARPS) * 32;
    const int begin = warp * part, end = min(begin + part, pairs);
    int* next = sort.next[warp];
    for (int e = lane; e < a.experts; e += 32) next[e] = 0;
    __syncwarp();
    for (int i = begin + lane; i < end; i += 32) atomicAdd(next + __ldcg(&a.to.choices[i].expert), 1);
    __syncthreads();
    for (int e = threadIdx.x; e < a.experts; e += ROUTE_THREADS) {
        int count = 0;
        for (int w = 0; w < ROUTE_WARPS; w++) count += sort.next[w][e];
        sort.count[e] = count;
    }
    __syncthreads();
    if (warp == 0) line_up(a, sort, lane);
    __syncthreads();
    for (int e = threadIdx.x; e < a.experts; e += ROUTE_THREADS) {
        int place = sort.first[e], left = sort.count[e];
        Share* shares = a.to.shares + sort.first_share[e];
        for (int first = place; left > 0; first += a.share_rows, left -= a.share_rows)
            *shares++ = {e, first, min(left, a.share_rows)};
        for (int w = 0; w < ROUTE_WARPS; w++) {
            const int count = sort.next[w][e];
            sort.next[w][e] = place;
            place += count;
        }
    }
    __syncthreads();
    for (int i = begin + lane; i - lane < end; i += 32) {
        const bool real = i < end;
        const int expert = real ? __ldcg(&a.to.choices[i].expert) : MAX_EXPERTS;
        const uint32_t alike = __match_any_sync(~0u, expert);
        const int before = __popc(alike & ((1u << lane) - 1));
        const int place = real ? next[expert] + before : 0;
        __syncwarp();
        if (real && before == 0) next[expert] += __popc(alike);
        __syncwarp();
        if (!real) continue;
        a.to.places[i] = place;
        a.to.rows[place] = i / a.used;
    }
}

template <bool BY_SCORES> DEVICE void route_rows(const RouteArgs& a) {
    __shared__ Sort sort;
    __shared__ bool is_last;
    launch_dependents();
    grid_dependency_wait();
    const int row = blockIdx.x * ROUTE_WARPS + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (row < a.rows) choose_row<BY_SCORES>(a, row, lane);
    if (a.share_rows == 1) {
        if (blockIdx.x == 0 && threadIdx.x == 0) a.to.counts[0] = a.rows * a.used;
        return;
    }
    // What the others wrote is seen by who comes last.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(a.to.counts + 1, 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) a.to.counts[1] = 0;
    sort_by_expert(a, sort);
}

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) route(const __grid_constant__ RouteArgs a) { route_rows<false>(a); }
extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) route_by_scores(const __grid_constant__ RouteArgs a) {
    route_rows<true>(a);
}
