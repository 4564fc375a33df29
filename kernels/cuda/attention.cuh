// Causal attention with grouped query heads over the paged KV cache.
//
// A tile is 16 (token, query head) rows of one sequence and one key-value head, so that decoding
// fills the tensor core's rows with the heads of a group and prefill with tokens. Keys are walked
// in splits of one page. Of a split, a warp computes the scores of
// its tile (F16 queries and keys, F32 sums), their maximum, exponentials rounded to F16, their
// sum, and the product with the values. Splits are merged in ascending order, the first one taken
// as it is. So a row's bits depend on its own position alone, whether a block's warps take the
// splits in turns (`together`), or each split has a warp and a second kernel merges (`split`, `merge`).
//
// Keys and values are read once a tile of 16 rows: for decoding that is once a group of heads.
#pragma once
#include "kv.cuh"

constexpr int SPLIT = PAGE;
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
};
LAYOUT(AttentionArgs, 88, AT(q, 0) AT(out, 8) AT(partial, 16) AT(tiles, 24) AT(kv, 32)
       AT(n_tiles, 64) AT(heads, 68) AT(kv_heads, 72) AT(splits, 76) AT(scale, 80))

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

struct Rescale {
    float old, fresh, max;
};
// The factors that bring two splits' sums to one maximum. `fresh` is not MASKED.
DEVICE Rescale rescale_factors(float max, float fresh) {
    float m = fmaxf(max, fresh);
    return {exp2_of(max - m), exp2_of(fresh - m), m};
}

// DECODING: a tile's rows are heads of one token.
template <int HD, bool DECODING = false> struct Walker {
    const AttentionArgs& a;
    Tile tile;
    int kv_head;
    Lane lane;
    uint2 q[HD / 16][2];
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
            for (int k = 0; k < HD / 16; k++)
                q[k][r] = real ? *reinterpret_cast<const uint2*>(from + 16 * k + 4 * lane.t)
                               : make_uint2(0, 0);
        }
    }

    // Position of the tile's last row.
    DEVICE int last() const {
        return tile.position0 + token_of(tile.first + tile.count - 1);
    }

    DEVICE void scores(float (&s)[4][4], int page) const {
        const __half* keys = key_at(a.kv, page, kv_head, HD);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int slot = 8 * (lane.g >> 1) + 2 * n + (lane.g & 1);
            const __half* key = keys + slot * HD + 4 * lane.t;
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
#pragma unroll
            for (int k = 0; k < HD / 16; k++) {
                uint2 b = *reinterpret_cast<const uint2*>(key + 16 * k);
                mma(s[n], q[k][0].x, q[k][1].x, q[k][0].y, q[k][1].y, b.x, b.y);
            }
        }
    }

    // One split; rows that see nothing of it get MASKED.
    DEVICE void split(SoftmaxState<HD>& state, int index) const {
        float s[4][4];
        int start = index * SPLIT, page = a.kv.tables[tile.table + index];
        state.clear();
        scores(s, page);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = start + 8 * lane.t + 2 * n + (i & 1), r = i >> 1;
                s[n][i] = at <= position[r] ? __fmul_rn(s[n][i], a.scale) : MASKED;
                state.max[r] = fmaxf(state.max[r], s[n][i]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            state.max[r] = fmaxf(state.max[r], __shfl_xor_sync(~0u, state.max[r], 1));
            state.max[r] = fmaxf(state.max[r], __shfl_xor_sync(~0u, state.max[r], 2));
        }
        uint32_t p[4][2];  // of each n, rows g and g + 8
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float base = state.max[r] == MASKED ? 0.0f : state.max[r];
                p[n][r] = pack(exp2_of(s[n][2 * r] - base), exp2_of(s[n][2 * r + 1] - base));
                float2 back = __half22float2(halves(p[n][r]));
                state.sum[r] = __fadd_rn(state.sum[r], __fadd_rn(back.x, back.y));
            }
        const __half* values = value_at(a.kv, page, kv_head, a.kv_heads, HD);
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            uint4 v = *reinterpret_cast<const uint4*>(values + (8 * n + lane.g) * PAGE + 8 * lane.t);
            mma(state.o[n], p[0][0], p[0][1], p[1][0], p[1][1], v.x, v.y);
            mma(state.o[n], p[2][0], p[2][1], p[3][0], p[3][1], v.z, v.w);
        }
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
    if (s * SPLIT > w.last()) return;
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

// One head of one row, merged from its splits by a warp; `position` is the row's. `keep(i, v)` gets its
// dimensions.
template <typename Keep>
DEVICE void merge_splits(const AttentionArgs& a, int64_t at, int position, int head_dim, const Keep& keep) {
    const float* from = a.partial + at * a.splits * (head_dim + 2);
    int lane = threadIdx.x & 31, splits = position / SPLIT + 1;
    float max = from[head_dim], sum = from[head_dim + 1], o[MAX_HEAD / 32];
    for (int i = 0; i < MAX_HEAD / 32; i++)
        o[i] = lane + 32 * i < head_dim ? from[lane + 32 * i] : 0.0f;
    for (int s = 1; s < splits; s++) {
        from += head_dim + 2;
        Rescale f = rescale_factors(max, from[head_dim]);
        max = f.max;
        sum = __fmaf_rn(sum, f.old, __fmul_rn(from[head_dim + 1], f.fresh));
        for (int i = 0; i < MAX_HEAD / 32; i++)
            if (lane + 32 * i < head_dim)
                o[i] = __fmaf_rn(o[i], f.old, __fmul_rn(from[lane + 32 * i], f.fresh));
    }
    for (int i = 0; i < MAX_HEAD / 32; i++)
        if (lane + 32 * i < head_dim) keep(lane + 32 * i, __fdiv_rn(o[i], sum));
}
