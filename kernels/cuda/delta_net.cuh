// Gated delta nets (reference/delta_net.rs): what lies between the projections of a layer and the norm of its outputs. A step
// with few rows of each sequence is delta_net.cu's, another one delta_prompt.cu's.
//
// A unit is a head of keys with its heads of values. Of each block of PAGE positions a unit keeps, in a page of F32
// (device/common/states.rs):
//
//   rows   [PAGE]: inputs of the convolution (query, key, values), key, updates [v_heads][head_dim], log decays [v_heads]
//   state  [v_heads][head_dim by key][head_dim by value], at the end of the block
//
// Rows never change. With the state S before a block, a row of the block is
//
//   u[i] = beta (v - d(-1, i) S' k[i] - sum over j < i of d(j, i) (k[j] . k[i]) u[j])
//   o[i] =           d(-1, i) S' q[i] + sum over j <= i of d(j, i) (k[j] . q[i]) u[j]
//
// where d(j, i) is the product of the decays from j + 1 to i, and the next state d(-1, i) S + sum of d(j, i) k[j] u[j]' for the
// last i. So a row depends on its position and on rows before it only, and all kernels add in an order that its place in
// the block determines: a prompt in any chunks and a decode step have the same bits.
#pragma once
#include "glu.cuh"
#include "hopper.cuh"
#include "states.cuh"

struct DeltaArgs {
    const float* projected;  // [rows, stride]: queries, keys, values, gates of the output, logits of strengths and inputs of decays
    const Row* rows;
    const StateRow* state_rows;
    const StateSequence* sequences;
    const float* conv;   // [channels, kernel], the present position last
    const float* dt;     // [v_heads] added to the input of the decay
    const float* decay;  // [v_heads] factor, not positive
    float* mixed;        // [rows, channels], behind the convolution
    float* products;     // [rows, v_heads, 2, PAGE] of a long prompt: d(j, i) (k[j] . k[i]) and d(j, i) (k[j] . q[i])
    float* out;          // [rows, values]
    StatePages states;
    int stride, head_dim, k_heads, v_heads, kernel;
    int grouped;  // 0: head h of values belongs to unit h % k_heads; else to unit h / grouped, and v_heads = grouped k_heads
    float eps;
    int pieces;  // of a long prompt: blocks of positions that a sequence has rows in, at most
};
LAYOUT(DeltaArgs, 152, AT(projected, 0) AT(rows, 8) AT(state_rows, 16) AT(sequences, 24) AT(conv, 32) AT(dt, 40) AT(decay, 48)
       AT(mixed, 56) AT(products, 64) AT(out, 72) AT(states, 80) AT(stride, 120) AT(head_dim, 124) AT(k_heads, 128)
       AT(v_heads, 132) AT(kernel, 136) AT(grouped, 140) AT(eps, 144) AT(pieces, 148))

// Offsets in a unit's row.
struct UnitRow {
    int dim, v_heads;
    DEVICE UnitRow(const DeltaArgs& a) : dim(a.head_dim), v_heads(a.v_heads / a.k_heads) {}
    DEVICE int key() const { return (2 + v_heads) * dim; }
    DEVICE int update(int head) const { return (3 + v_heads + head) * dim; }
    DEVICE int log_decay(int head) const { return (3 + 2 * v_heads) * dim + head; }
    DEVICE int floats() const { return log_decay(v_heads); }
};

// A head of values: its unit, and its number there.
struct ValueHead {
    int unit, index;
    DEVICE ValueHead(const DeltaArgs& a, int head) {
        unit = a.grouped ? head / a.grouped : head % a.k_heads;
        index = a.grouped ? head % a.grouped : head / a.k_heads;
    }
    // Places behind the gates of a projected row: all strengths and then all decays, or those of each unit together.
    DEVICE static int strength(const DeltaArgs& a, int head) {
        return a.grouped ? head + head / a.grouped * a.grouped : head;
    }
    DEVICE static int decay(const DeltaArgs& a, int head) {
        return strength(a, head) + (a.grouped ? a.grouped : a.v_heads);
    }
};

DEVICE float sigmoid(float x) { return __fdividef(1.0f, __fadd_rn(1.0f, __expf(-x))); }

// Threads of a column of a head's values. Thread `part` has keys 4 part .. 4 part + 3 of every 16, and every fourth row. Each
// sums its own, four sums by place in four, and the threads' sums are added by a butterfly.
constexpr int DELTA_LANES = 4;
// Floats behind the rows of keys and queries in shared memory, so that lanes that read together use different banks.
constexpr int KEY_PAD = 4;

DEVICE float sum_of_column(float v) {
#pragma unroll
    for (int d = 1; d < DELTA_LANES; d <<= 1) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

DEVICE float dot_four(const float4& x, const float* at, float sum) {
    const float4 y = *reinterpret_cast<const float4*>(at);
    sum = __fmaf_rn(x.x, y.x, sum);
    sum = __fmaf_rn(x.y, y.y, sum);
    sum = __fmaf_rn(x.z, y.z, sum);
    return __fmaf_rn(x.w, y.w, sum);
}

// Products of this lane's key with the keys and queries of rows `first` and behind, before `to`, each added from the first
// column to the last.
template <int DIM, int SLOTS>
DEVICE void multiply_keys(const float (*keys)[DIM + KEY_PAD], const float (*queries)[DIM + KEY_PAD], int first, int to,
                          float (&known)[SLOTS], float (&asked)[SLOTS]) {
    const int lane = threadIdx.x & 31;
#pragma unroll 2
    for (int k = 0; k < DIM; k += 4) {
        const float4 other = *reinterpret_cast<const float4*>(&keys[lane][k]);
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            const int slot = min(first + s, to - 1);
            known[s] = dot_four(other, &keys[slot][k], known[s]);
            asked[s] = dot_four(other, &queries[slot][k], asked[s]);
        }
    }
}

// Logarithms of the decays from behind this lane's row to rows `first` and behind, before `to`, each added from the row
// backwards. `own`: the logarithm of this lane's row. The last lane has no row before any other: it adds all of the block.
template <int SLOTS> DEVICE void add_decays(float own, int first, int to, float (&decays)[SLOTS]) {
    const int lane = threadIdx.x & 31, behind = lane == PAGE - 1 ? -1 : lane;
    for (int i = min(first + SLOTS, to) - 1; i >= 0; i--) {
        const float log_decay = __shfl_sync(~0u, own, i);
#pragma unroll
        for (int s = 0; s < SLOTS; s++)
            if (i <= first + s && i > behind) decays[s] = __fadd_rn(decays[s], log_decay);
    }
}

// The rows of a sequence in one block of positions: slots `from` to `to`, with the rows before them.
struct DeltaRows {
    int row0;  // of slot `from` in the batch
    int from, to;
    int pages;  // entry of the block
    float* block;
};

// The rows of a sequence from a position on, up to the end of its block.
DEVICE DeltaRows rows_from(const DeltaArgs& a, const StateSequence& sequence, int position, int unit) {
    const int from = position % PAGE, to = min(PAGE, from + sequence.position0 + sequence.rows - position);
    const int pages = sequence.pages + (position / PAGE - sequence.position0 / PAGE) * a.states.groups;
    return {sequence.row0 + position - sequence.position0, from, to, pages, unit_at(a.states, pages, unit)};
}
