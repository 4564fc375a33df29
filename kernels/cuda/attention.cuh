// Causal attention with grouped query heads over the paged KV cache.
//
// A tile is 16 (token, query head) rows of one sequence and one key-value head, so that decoding
// fills the tensor core's rows with the heads of a group and prefill with tokens. Keys are walked
// in splits of four pages.
//
// The law of a split, for all kernels and architectures; a row at position p sees the keys k <= p, with a window only
// those with p - window < k:
//   score of a key   steps of 16 dims from the first on, F32; then times the scale (scale = log2(e) / sqrt(head_dim))
//   maximum          over the split's keys
//   e of a key       F16(2^(score - maximum)); 0 for a key that is not seen
//   sum              lane t of the row's four has keys 8n + 2t and 8n + 2t + 1 of the split, n = 0 .. 15, and adds the
//                    two: x_n. Of page q, a_q = (((0 + x_4q) + x_4q+1) + x_4q+2) + x_4q+3. Of the lane,
//                    ((a_0 + a_1) + a_2) + a_3. Then a butterfly over t.
//   output of a dim  steps of 16 keys from the first on, F32. A step that sees no key adds zeros, and may be left out.
// Splits that the row sees some of are merged in ascending order, the first one taken as it is. Where heads have sinks, the
// head's is merged behind them (add_sink). Then outputs are divided by the sum. So a row's bits depend on its own position
// alone, whoever computes the splits.
//
// Keys and values are read once a tile of 16 rows: for decoding that is once a group of heads.
#pragma once
#include "kv.cuh"

constexpr int SPLIT = 128;
constexpr int SPLIT_PAGES = SPLIT / PAGE;
constexpr float MASKED = -INFINITY;

struct Tile {
    int row0;   // batch row of the sequence's first token in this step
    int first;  // (token, head of group) index of the tile's first row
    int count;  // rows, at most 16
    int position0;  // of the sequence's first token in this step
    int table;
};
LAYOUT(Tile, 20, AT(row0, 0) AT(first, 4) AT(count, 8) AT(position0, 12) AT(table, 16))

struct AttentionArgs {
    const __half* q;  // [rows][heads][head_dim]
    float* out;       // [rows][heads * head_dim]
    float* partial;   // [rows][heads][splits][head_dim + 2]
    const Tile* tiles;
    KvArgs kv;
    int n_tiles, heads, kv_heads, splits;
    float scale;  // 1 / sqrt(head_dim) * log2(e)
    int window;   // positions that a row sees, itself included; the largest number: all
    const float* sinks;  // [heads] a score in the head's softmax that has no value, or null
};
LAYOUT(AttentionArgs, 96, AT(q, 0) AT(out, 8) AT(partial, 16) AT(tiles, 24) AT(kv, 32)
       AT(n_tiles, 64) AT(heads, 68) AT(kv_heads, 72) AT(splits, 76) AT(scale, 80) AT(window, 84)
       AT(sinks, 88))

// A row that is none has a position of -1, and sees nothing.
DEVICE bool sees(const AttentionArgs& a, int position, int key) {
    return uint32_t(position - key) < uint32_t(a.window);
}
// The first split of which a row sees anything.
DEVICE int first_split(const AttentionArgs& a, int position) { return max(position - a.window + 1, 0) / SPLIT; }

// The softmax's state after one or several splits, for the rows g and g + 8 of a tile: maximum, sum of
// exponentials, and the weighted sum of values.
template <int HD> struct SoftmaxState {
    float max[2], sum[2];
    float o[HD / 8][4];

    DEVICE void clear() {
        max[0] = max[1] = MASKED;
        sum[0] = sum[1] = 0.0f;
        for (int n = 0; n < HD / 8; n++)
            for (int i = 0; i < 4; i++) o[n][i] = 0.0f;
    }
};

// 2^x, 0 below -126.
DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The exponentials of two scores, rounded to F16. A row that sees nothing has a maximum of MASKED, and zeros.
DEVICE uint32_t exponentials(float low, float high, float max) {
    float base = max == MASKED ? 0.0f : max;
    return pack(exp2_of(low - base), exp2_of(high - base));
}

DEVICE uint32_t word(const __half* p) { return *reinterpret_cast<const uint32_t*>(p); }

struct Rescale {
    float old, fresh, max;
};
// The factors that bring two splits' sums to one maximum. `fresh` is not MASKED.
DEVICE Rescale rescale_factors(float max, float fresh) {
    float m = fmaxf(max, fresh);
    return {exp2_of(max - m), exp2_of(fresh - m), m};
}

constexpr float LOG2_E = 1.4426950409f;

// A sink takes part in the softmax behind all splits, as a split of one key whose value is zeros would. `at` is batch row
// and head. Gives the factor of the outputs, and changes the sum that they are divided by. Only where there are sinks.
DEVICE float add_sink(const AttentionArgs& a, int64_t at, float max, float& sum) {
    const float sink = a.sinks[uint32_t(at) % uint32_t(a.heads)];
    const Rescale f = rescale_factors(max, __fmul_rn(sink, LOG2_E));
    sum = __fmaf_rn(sum, f.old, f.fresh);
    return f.old;
}

// DECODING: a tile's rows are heads of one token.
template <int HD, bool DECODING = false> struct Walker {
    const AttentionArgs& a;
    Tile tile;
    int kv_head;
    Lane lane;
    uint32_t q[HD / 16][4];  // as the tensor core has them
    int position[2];
    int group;

    DEVICE int token_of(int index) const { return DECODING ? 0 : index / group; }

    DEVICE Walker(const AttentionArgs& args, const Tile& t, int kv)
        : a(args), tile(t), kv_head(kv), group(args.heads / args.kv_heads) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = lane.g + 8 * r, index = tile.first + row;
            bool real = row < tile.count;
            int token = token_of(index);
            position[r] = real ? tile.position0 + token : -1;
            const __half* from = a.q + (int64_t(tile.row0 + token) * a.heads +
                                        kv_head * group + index - token * group) * HD;
#pragma unroll
            for (int k = 0; k < HD / 8; k++)
                q[k / 2][k % 2 * 2 + r] = real ? *reinterpret_cast<const uint32_t*>(from + 8 * k + 2 * lane.t) : 0;
        }
    }

    // Position of the tile's first row, and of its last.
    DEVICE int first() const { return tile.position0 + token_of(tile.first); }
    DEVICE int last() const {
        return tile.position0 + token_of(tile.first + tile.count - 1);
    }

    // Scores of a page, before scaling.
    DEVICE void scores(float (*s)[4], int page) const {
        const __half* keys = key_at(a.kv, page, kv_head, HD) + 2 * lane.t;
#pragma unroll
        for (int n = 0; n < PAGE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
#pragma unroll
            for (int k = 0; k < HD / 16; k++) {
                const __half* key = keys + key_piece(2 * k, 8 * n + lane.g);
                mma(s[n], q[k][0], q[k][1], q[k][2], q[k][3], word(key), word(key + key_piece(1, 0)));
            }
        }
    }

    // Adds the values of a page, for keys of which `p` has the exponentials.
    DEVICE void add_values(float (&o)[HD / 8][4], const uint32_t (*p)[2], int page, int steps) const {
        const __half* values = value_at(a.kv, page, kv_head, a.kv_heads, HD) + 2 * lane.t;
#pragma unroll
        for (int k = 0; k < PAGE / 16; k++) {
            if (k >= steps) return;
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                const __half* value = values + value_piece(2 * k, 8 * n + lane.g, HD);
                mma(o[n], p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1], word(value),
                    word(value + value_piece(1, 0, HD)));
            }
        }
    }

    // One split; rows that see nothing of it get MASKED.
    DEVICE void split(SoftmaxState<HD>& state, int index) const {
        constexpr int NS = SPLIT / 8, PAGE_NS = PAGE / 8;
        float s[NS][4];
        int start = index * SPLIT, seen = last() - start + 1;
        const int* pages = a.kv.tables + tile.table + index * SPLIT_PAGES;
        state.clear();
#pragma unroll
        for (int q = 0; q < SPLIT_PAGES; q++)
            if (q * PAGE < seen) scores(s + q * PAGE_NS, pages[q]);
#pragma unroll
        for (int n = 0; n < NS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = start + 8 * n + 2 * lane.t + (i & 1), r = i >> 1;
                s[n][i] = sees(a, position[r], at) ? __fmul_rn(s[n][i], a.scale) : MASKED;
                state.max[r] = fmaxf(state.max[r], s[n][i]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            state.max[r] = fmaxf(state.max[r], __shfl_xor_sync(~0u, state.max[r], 1));
            state.max[r] = fmaxf(state.max[r], __shfl_xor_sync(~0u, state.max[r], 2));
        }
        uint32_t p[NS][2];  // of each n, rows g and g + 8
#pragma unroll
        for (int q = 0; q < SPLIT_PAGES; q++) {
            float sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int n = q * PAGE_NS; n < (q + 1) * PAGE_NS; n++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    p[n][r] = exponentials(s[n][2 * r], s[n][2 * r + 1], state.max[r]);
                    float2 back = __half22float2(halves(p[n][r]));
                    sum[r] = __fadd_rn(sum[r], __fadd_rn(back.x, back.y));
                }
#pragma unroll
            for (int r = 0; r < 2; r++) state.sum[r] = q == 0 ? sum[r] : __fadd_rn(state.sum[r], sum[r]);
        }
#pragma unroll
        for (int q = 0; q < SPLIT_PAGES; q++)
            if (q * PAGE < seen) add_values(state.o, p + q * PAGE_NS, pages[q], (seen - q * PAGE + 15) / 16);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            state.sum[r] = __fadd_rn(state.sum[r], __shfl_xor_sync(~0u, state.sum[r], 1));
            state.sum[r] = __fadd_rn(state.sum[r], __shfl_xor_sync(~0u, state.sum[r], 2));
        }
    }

    // Batch row and head of the tile's row g + 8 r; false past the end.
    DEVICE bool place(int r, int64_t& at) const {
        int row = lane.g + 8 * r, index = tile.first + row, token = token_of(index);
        at = int64_t(tile.row0 + token) * a.heads + kv_head * group + index - token * group;
        return row < tile.count;
    }
};

// One split of a tile, into `partial`.
template <int HD, bool DECODING = false>
DEVICE void attention_split(const AttentionArgs& a, const Tile& tile, int kv_head, int s) {
    Walker<HD, DECODING> w(a, tile, kv_head);
    if (s * SPLIT > w.last() || s < first_split(a, w.first())) return;
    SoftmaxState<HD> state;
    w.split(state, s);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t at;
        if (!w.place(r, at)) continue;
        float* to = a.partial + (at * a.splits + s) * (HD + 2);
        if (w.lane.t == 0) {
            to[HD] = state.max[r];
            to[HD + 1] = state.sum[r];
        }
        for (int n = 0; n < HD / 8; n++)
            *reinterpret_cast<float2*>(to + 8 * n + 2 * w.lane.t) =
                make_float2(state.o[n][2 * r], state.o[n][2 * r + 1]);
    }
}

// One head of one row at `position`, merged by a warp from its splits, of which `first` is the first. `keep(i, v)` gets
// its dimensions, of which there are at most MOST.
template <int MOST, typename Keep>
DEVICE void merge_splits(const AttentionArgs& a, int64_t at, int first, int position, int head_dim, const Keep& keep) {
    const float* from = a.partial + (at * a.splits + first) * (head_dim + 2);
    int lane = threadIdx.x & 31, splits = position / SPLIT + 1;
    float max = from[head_dim], sum = from[head_dim + 1], o[MOST / 32];
    for (int i = 0; i < MOST / 32; i++)
        o[i] = lane + 32 * i < head_dim ? from[lane + 32 * i] : 0.0f;
#pragma unroll 4
    for (int s = first + 1; s < splits; s++) {
        from += head_dim + 2;
        Rescale f = rescale_factors(max, from[head_dim]);
        max = f.max;
        sum = __fmaf_rn(sum, f.old, __fmul_rn(from[head_dim + 1], f.fresh));
        for (int i = 0; i < MOST / 32; i++)
            if (lane + 32 * i < head_dim)
                o[i] = __fmaf_rn(o[i], f.old, __fmul_rn(from[lane + 32 * i], f.fresh));
    }
    if (a.sinks) {
        const float factor = add_sink(a, at, max, sum);
        for (int i = 0; i < MOST / 32; i++) o[i] = __fmul_rn(o[i], factor);
    }
    for (int i = 0; i < MOST / 32; i++)
        if (lane + 32 * i < head_dim) keep(lane + 32 * i, __fdiv_rn(o[i], sum));
}
