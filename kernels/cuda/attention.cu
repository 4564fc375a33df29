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
// Reads keys and values once a tile of 16 rows: for decoding that is once a group of heads.
#pragma once
#include "kv.cuh"

constexpr int SPLIT = PAGE;
constexpr float NONE = -INFINITY;

struct Tile {
    int row0;   // batch row of the sequence's first token in this step
    int first;  // (token, head of group) index of the tile's first row
    int count;  // rows, at most 16
    int position0;  // of the sequence's first token in this step
    int table;
};

struct AttentionArgs {
    const __half* q;  // [rows][heads][head_dim]
    float* out;       // [rows][heads * head_dim]
    float* partial;   // [rows][heads][splits][head_dim + 2]
    const Tile* tiles;
    KvArgs kv;
    int n_tiles, heads, kv_heads, splits;
    float scale;  // 1 / sqrt(head_dim) * log2(e)
};

// What one or several splits say about the rows g and g + 8 of a tile.
template <int HD> struct Seen {
    float max[2], sum[2];
    float o[HD / 8][4];

    DEVICE void clear() {
        max[0] = max[1] = NONE;
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

struct Factors {
    float old, fresh, max;
};
// How two splits' sums are brought to one maximum. `fresh` is not NONE.
DEVICE Factors merge_factors(float max, float fresh) {
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

    // One split; rows that see nothing of it get NONE.
    DEVICE void split(Seen<HD>& seen, int index) const {
        float s[4][4];
        int start = index * SPLIT, page = a.kv.tables[tile.table + index];
        seen.clear();
        scores(s, page);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = start + 8 * lane.t + 2 * n + (i & 1), r = i >> 1;
                s[n][i] = at <= position[r] ? __fmul_rn(s[n][i], a.scale) : NONE;
                seen.max[r] = fmaxf(seen.max[r], s[n][i]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            seen.max[r] = fmaxf(seen.max[r], __shfl_xor_sync(~0u, seen.max[r], 1));
            seen.max[r] = fmaxf(seen.max[r], __shfl_xor_sync(~0u, seen.max[r], 2));
        }
        uint32_t p[4][2];  // of each n, rows g and g + 8
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float base = seen.max[r] == NONE ? 0.0f : seen.max[r];
                p[n][r] = pack(exp2_of(s[n][2 * r] - base), exp2_of(s[n][2 * r + 1] - base));
                float2 back = __half22float2(halves(p[n][r]));
                seen.sum[r] = __fadd_rn(seen.sum[r], __fadd_rn(back.x, back.y));
            }
        const __half* values = value_at(a.kv, page, kv_head, a.kv_heads, HD);
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            uint4 v = *reinterpret_cast<const uint4*>(values + (8 * n + lane.g) * PAGE + 8 * lane.t);
            mma(seen.o[n], p[0][0], p[0][1], p[1][0], p[1][1], v.x, v.y);
            mma(seen.o[n], p[2][0], p[2][1], p[3][0], p[3][1], v.z, v.w);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            seen.sum[r] = __fadd_rn(seen.sum[r], __shfl_xor_sync(~0u, seen.sum[r], 1));
            seen.sum[r] = __fadd_rn(seen.sum[r], __shfl_xor_sync(~0u, seen.sum[r], 2));
        }
    }

    // Batch row and head of the tile's row g + 8 r; false past the end.
    DEVICE bool place(int r, int64_t& at) const {
        int row = lane.g + 8 * r, index = tile.first + row, token = token_of(index);
        at = int64_t(tile.row0 + token) * a.heads + kv_head * group + index - token * group;
        return row < tile.count;
    }
};

// One split of a tile.
template <int HD, bool DECODING = false>
DEVICE void attend_split(const AttentionArgs& a, const Tile& tile, int kv_head, int s) {
    Walker<HD, DECODING> w(a, tile, kv_head);
    if (s * SPLIT > w.last()) return;
    Seen<HD> seen;
    w.split(seen, s);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t at;
        if (!w.place(r, at)) continue;
        float* to = a.partial + (at * a.splits + s) * (HD + 2);
        if (w.lane.t == 0) {
            to[HD] = seen.max[r];
            to[HD + 1] = seen.sum[r];
        }
        for (int n = 0; n < HD / 8; n++)
            *reinterpret_cast<float2*>(to + 8 * n + 2 * w.lane.t) =
                make_float2(seen.o[n][2 * r], seen.o[n][2 * r + 1]);
    }
}

// One head of one row by a warp; `position` is the row's. `keep(i, v)` gets its dimensions.
template <typename Keep>
DEVICE void attend_merge(const AttentionArgs& a, int64_t at, int position, int head_dim, const Keep& keep) {
    const float* from = a.partial + at * a.splits * (head_dim + 2);
    int lane = threadIdx.x & 31, splits = position / SPLIT + 1;
    float max = from[head_dim], sum = from[head_dim + 1], o[MAX_HEAD / 32];
    for (int i = 0; i < MAX_HEAD / 32; i++)
        o[i] = lane + 32 * i < head_dim ? from[lane + 32 * i] : 0.0f;
    for (int s = 1; s < splits; s++) {
        from += head_dim + 2;
        Factors f = merge_factors(max, from[head_dim]);
        max = f.max;
        sum = __fmaf_rn(sum, f.old, __fmul_rn(from[head_dim + 1], f.fresh));
        for (int i = 0; i < MAX_HEAD / 32; i++)
            if (lane + 32 * i < head_dim)
                o[i] = __fmaf_rn(o[i], f.old, __fmul_rn(from[lane + 32 * i], f.fresh));
    }
    for (int i = 0; i < MAX_HEAD / 32; i++)
        if (lane + 32 * i < head_dim) keep(lane + 32 * i, __fdiv_rn(o[i], sum));
}

#ifndef DEVICE_FUNCTIONS_ONLY
#include "hopper.cuh"

// Unit: (tile, key-value head), by a block: its warps take the splits in turns, and the threads
// merge what they have seen, in order, a row and some of its columns each.
template <int HD> struct Together {
    // As many as shared memory and the columns of a row are enough for (mirrored in ops.rs).
    static constexpr int WARPS = HD == 32 || HD == 64 ? 8 : 4, STRIDE = HD + 8;
    // Of a row: two columns at a time.
    static constexpr int THREADS = WARPS * 2, EACH = HD / THREADS / 2;
    float o[WARPS][16][STRIDE];
    float max[WARPS][16], sum[WARPS][16];

    DEVICE void put(const Seen<HD>& seen, int warp, const Lane& lane) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = lane.g + 8 * r;
            if (lane.t == 0) {
                max[warp][row] = seen.max[r];
                sum[warp][row] = seen.sum[r];
            }
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
                *reinterpret_cast<float2*>(&o[warp][row][8 * n + 2 * lane.t]) =
                    make_float2(seen.o[n][2 * r], seen.o[n][2 * r + 1]);
        }
    }
};

template <int HD> DEVICE void attend_together(const AttentionArgs& a) {
    using Room = Together<HD>;
    __shared__ Room room;
    let_next_begin();
    wait_for_previous();
    // The longest rows of a prompt come last and take longest: they begin first.
    int unit = gridDim.x - 1 - blockIdx.x, warp = threadIdx.x / 32;
    Walker<HD> w(a, a.tiles[unit / a.kv_heads], unit % a.kv_heads);
    int splits = w.last() / SPLIT + 1;
    int row = threadIdx.x / Room::THREADS, column = 2 * (threadIdx.x % Room::THREADS);
    float all_max = NONE, all_sum = 0.0f;
    float2 o[Room::EACH] = {};
    for (int first = 0; first < splits; first += Room::WARPS) {
        if (first > 0) __syncthreads();
        if (first + warp < splits) {
            Seen<HD> seen;
            w.split(seen, first + warp);
            room.put(seen, warp, w.lane);
        }
        __syncthreads();
        for (int i = 0; i < min(Room::WARPS, splits - first); i++) {
            float max = room.max[i][row], sum = room.sum[i][row];
            if (max == NONE) continue;
            bool is_first = all_max == NONE;
            Factors f = merge_factors(all_max, max);
            all_max = f.max;
            all_sum = is_first ? sum : __fmaf_rn(all_sum, f.old, __fmul_rn(sum, f.fresh));
#pragma unroll
            for (int n = 0; n < Room::EACH; n++) {
                const float* at = &room.o[i][row][2 * Room::THREADS * n + column];
                float2 v = *reinterpret_cast<const float2*>(at);
                o[n].x = is_first ? v.x : __fmaf_rn(o[n].x, f.old, __fmul_rn(v.x, f.fresh));
                o[n].y = is_first ? v.y : __fmaf_rn(o[n].y, f.old, __fmul_rn(v.y, f.fresh));
            }
        }
    }
    if (row >= w.tile.count) return;
    int group = a.heads / a.kv_heads, index = w.tile.first + row;
    int64_t at = int64_t(w.tile.row0 + index / group) * a.heads + w.kv_head * group + index % group;
#pragma unroll
    for (int n = 0; n < Room::EACH; n++)
        *reinterpret_cast<float2*>(a.out + at * HD + 2 * Room::THREADS * n + column) =
            make_float2(__fdiv_rn(o[n].x, all_sum), __fdiv_rn(o[n].y, all_sum));
}

struct MergeArgs {
    AttentionArgs a;
    const Row* rows;
    int n_rows, head_dim;
};

extern "C" __global__ void __launch_bounds__(128)
attention_merge(const __grid_constant__ MergeArgs m) {
    let_next_begin();
    wait_for_previous();
    int64_t at = int64_t(blockIdx.x) * 4 + threadIdx.x / 32;
    if (at >= int64_t(m.n_rows) * m.a.heads) return;
    attend_merge(m.a, at, m.rows[at / m.a.heads].position, m.head_dim,
                 [&](int i, float v) { m.a.out[at * m.head_dim + i] = v; });
}

// A block a unit; and four warps a block, a split of a unit each.
#define ATTENTION(HD)                                                                          \
    extern "C" __global__ void __launch_bounds__(Together<HD>::WARPS * 32)                     \
    attention_together_##HD(const __grid_constant__ AttentionArgs a) { attend_together<HD>(a); } \
    extern "C" __global__ void __launch_bounds__(128)                                          \
    attention_split_##HD(const __grid_constant__ AttentionArgs a) {                            \
        let_next_begin();                                                                      \
        wait_for_previous();                                                                   \
        int unit = blockIdx.x * 4 + threadIdx.x / 32;                                          \
        if (unit >= a.n_tiles * a.kv_heads * a.splits) return;                                 \
        int rest = unit / a.splits, tile = rest / a.kv_heads;                                  \
        attend_split<HD>(a, a.tiles[tile], rest % a.kv_heads, unit % a.splits);                \
    }
ATTENTION(16) ATTENTION(32) ATTENTION(64) ATTENTION(96) ATTENTION(128)
#endif
