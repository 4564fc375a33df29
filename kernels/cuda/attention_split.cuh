// One split of attention by four warps, from pages in shared memory.
//
// Of the scores, a warp computes a page; of the output, a quarter of the dims over all keys. Maxima, sums and
// exponentials go through shared memory. The bits are those of the one warp in attention.cuh. Where keys and values of a split
// do not fit beside each other (HALF_PAGES), values take the place of keys.
#pragma once
#include "attention.cuh"

constexpr int SPLIT_WARPS = SPLIT_PAGES;
constexpr int SPLIT_THREADS = 32 * SPLIT_WARPS;

// The largest heads whose keys and values are in shared memory at the same time.
constexpr int WHOLE_PAGES_HEAD = 256;
template <int HD> constexpr bool HALF_PAGES = HD > WHOLE_PAGES_HEAD;
// Of a page in shared memory: halves, and where its values begin.
template <int HD> constexpr int PAGE_HALVES = (HALF_PAGES<HD> ? 1 : 2) * PAGE * HD;
template <int HD> constexpr int VALUES_AT = HALF_PAGES<HD> ? 0 : PAGE * HD;

// Queries of 16 dims from 16 k on, as the tensor core has them. Those of heads that leave no registers for all of them are read
// each time.
template <int HD> DEVICE void queries_of(uint32_t (&q)[4], const Walker<HD>& w, int k) {
    if constexpr (!HALF_PAGES<HD>) {
#pragma unroll
        for (int i = 0; i < 4; i++) q[i] = w.q[k][i];
    } else {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t at;
            const bool real = w.place(r, at);
            const __half* from = w.a.q + at * HD + 16 * k + 2 * w.lane.t;
            q[r] = real ? word(from) : 0;
            q[r + 2] = real ? word(from + 8) : 0;
        }
    }
}

// What the four warps tell each other.
struct SplitExchange {
    float max[SPLIT_WARPS][16];
    float sum[SPLIT_WARPS][2][32];          // of each lane, for its two rows
    uint32_t p[SPLIT / 8][2][32];           // exponentials, as the tensor core has them
};

constexpr int SPLIT_EXCHANGE_BYTES = 5376;
static_assert(sizeof(SplitExchange) == SPLIT_EXCHANGE_BYTES);

// Column groups of 8 dims that a warp has: warp, warp + 4, ...
template <int HD> constexpr int SPLIT_COLUMNS = (HD / 8 + SPLIT_WARPS - 1) / SPLIT_WARPS;

template <int HD> struct SplitPart {
    float max[2], sum[2];
    float o[SPLIT_COLUMNS<HD>][4];
};

// `pages` has the split's pages, keys [PAGE * HD] and then values of each. `keys_ready` waits for this warp's own
// page of keys, `keys_read` for all four warps, and `values_ready` for them and the values.
template <int HD, typename KeysReady, typename KeysRead, typename ValuesReady>
DEVICE void split_by_four(SplitPart<HD>& part, const Walker<HD>& w, const __half* pages, SplitExchange& exchange, int index,
                          const KeysReady& keys_ready, const KeysRead& keys_read, const ValuesReady& values_ready) {
    constexpr int PAGE_NS = PAGE / 8;
    const Lane& lane = w.lane;
    int warp = threadIdx.x / 32 % SPLIT_WARPS, first = index * SPLIT + warp * PAGE;
    int seen = w.last() - index * SPLIT + 1, matrix = lane.id / 8, line = lane.id % 8;
    float s[PAGE_NS][4] = {};
    keys_ready();
    if (warp * PAGE < seen) {
        const __half* keys = pages + warp * PAGE_HALVES<HD>;
#pragma unroll
        for (int k = 0; k < HD / 16; k++) {
            uint32_t q[4];
            queries_of(q, w, k);
#pragma unroll
            for (int n = 0; n < PAGE_NS; n += 2) {
                uint32_t b[4];
                load_matrices(b, keys + key_piece(2 * k + matrix % 2, 8 * (n + matrix / 2) + line));
                mma(s[n], q[0], q[1], q[2], q[3], b[0], b[1]);
                mma(s[n + 1], q[0], q[1], q[2], q[3], b[2], b[3]);
            }
        }
    }
    float max[2] = {MASKED, MASKED};
#pragma unroll
    for (int n = 0; n < PAGE_NS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = first + 8 * n + 2 * lane.t + (i & 1), r = i >> 1;
            s[n][i] = sees(w.a, w.position[r], at) ? __fmul_rn(s[n][i], w.a.scale) : MASKED;
            max[r] = fmaxf(max[r], s[n][i]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 1));
        max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 2));
        if (lane.t == 0) exchange.max[warp][lane.g + 8 * r] = max[r];
    }
    keys_read();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        part.max[r] = MASKED;
#pragma unroll
        for (int i = 0; i < SPLIT_WARPS; i++) part.max[r] = fmaxf(part.max[r], exchange.max[i][lane.g + 8 * r]);
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < PAGE_NS; n++) {
            uint32_t p = exponentials(s[n][2 * r], s[n][2 * r + 1], part.max[r]);
            exchange.p[warp * PAGE_NS + n][r][lane.id] = p;
            float2 back = __half22float2(halves(p));
            sum = __fadd_rn(sum, __fadd_rn(back.x, back.y));
        }
        exchange.sum[warp][r][lane.id] = sum;
    }
    values_ready();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = exchange.sum[0][r][lane.id];
#pragma unroll
        for (int i = 1; i < SPLIT_WARPS; i++) sum = __fadd_rn(sum, exchange.sum[i][r][lane.id]);
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
        part.sum[r] = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    }
#pragma unroll
    for (int c = 0; c < SPLIT_COLUMNS<HD>; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) part.o[c][i] = 0.0f;
#pragma unroll
    for (int q = 0; q < SPLIT_PAGES; q++) {
        if (q * PAGE >= seen) break;
        const __half* values = pages + q * PAGE_HALVES<HD> + VALUES_AT<HD>;
        uint32_t p[PAGE_NS][2];
#pragma unroll
        for (int n = 0; n < PAGE_NS; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) p[n][r] = exchange.p[q * PAGE_NS + n][r][lane.id];
#pragma unroll
        for (int c = 0; c < SPLIT_COLUMNS<HD>; c++) {
            int n = warp + c * SPLIT_WARPS;
            if (n >= HD / 8) break;
            uint32_t v[4];
            load_matrices(v, values + value_piece(matrix, 8 * n + line, HD));
            mma(part.o[c], p[0][0], p[0][1], p[1][0], p[1][1], v[0], v[1]);
            mma(part.o[c], p[2][0], p[2][1], p[3][0], p[3][1], v[2], v[3]);
        }
    }
}

DEVICE void copy_async_16(__half* to, const __half* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
        ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

// A block's shared memory.
template <int HD> struct SplitMemory {
    __half pages[SPLIT_PAGES][PAGE_HALVES<HD>];
    SplitExchange exchange;
};
// As the host computes it (device/cuda/attention.rs).
static_assert(sizeof(SplitMemory<WHOLE_PAGES_HEAD>) == 2 * SPLIT * WHOLE_PAGES_HEAD * sizeof(__half) + SPLIT_EXCHANGE_BYTES);
static_assert(sizeof(SplitMemory<MAX_HEAD>) == SPLIT * MAX_HEAD * sizeof(__half) + SPLIT_EXCHANGE_BYTES);

// The position of a tile's last row, counted from the first of a split, and one.
DEVICE int seen_of(const AttentionArgs& a, const Tile& tile, int index) {
    int group = a.heads / a.kv_heads;
    return tile.position0 + (tile.first + tile.count - 1) / group - index * SPLIT + 1;
}

// Keys of a page in shared memory, or its values, as one group of copies of a warp.
template <int HD> DEVICE void copy_half_page(__half* to, const __half* from) {
#pragma unroll 8
    for (int i = threadIdx.x & 31; i < PAGE * HD / 8; i += 32) copy_async_16(to + 8 * i, from + 8 * i);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Asks for the pages of a split, of which `seen` positions are seen: each warp copies a page, keys first, or keys alone.
template <int HD>
DEVICE void copy_pages(SplitMemory<HD>& my, const AttentionArgs& a, const Tile& tile, int kv_head, int index, int seen) {
    int warp = threadIdx.x / 32;
    if (warp * PAGE >= seen) return;
    int page = a.kv.tables[tile.table + index * SPLIT_PAGES + warp];
    copy_half_page<HD>(my.pages[warp], key_at(a.kv, page, kv_head, HD));
    if (!HALF_PAGES<HD>) copy_half_page<HD>(my.pages[warp] + VALUES_AT<HD>, value_at(a.kv, page, kv_head, a.kv_heads, HD));
}

// Asks for the values in place of keys, which all warps have read.
template <int HD> DEVICE void copy_values(SplitMemory<HD>& my, const Walker<HD>& w, int index) {
    int warp = threadIdx.x / 32;
    if (index * SPLIT + warp * PAGE > w.last()) return;
    int page = w.a.kv.tables[w.tile.table + index * SPLIT_PAGES + warp];
    copy_half_page<HD>(my.pages[warp], value_at(w.a.kv, page, w.kv_head, w.a.kv_heads, HD));
}

// One split whose pages were asked for, by a block.
template <int HD>
DEVICE void split_by_block(SplitPart<HD>& part, const Walker<HD>& w, SplitMemory<HD>& my, int index) {
    auto keys_ready = [] {
        if (HALF_PAGES<HD>) asm volatile("cp.async.wait_group 0;" ::: "memory");
        else asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
    };
    auto values_ready = [] {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
    };
    auto keys_read = [&] {
        values_ready();
        if (HALF_PAGES<HD>) copy_values(my, w, index);
    };
    split_by_four<HD>(part, w, my.pages[0], my.exchange, index, keys_ready, keys_read, values_ready);
}

// One split of a tile by a block. Into `partial`, or where there is but one split into `out`.
template <int HD> DEVICE void attention_split_block(const AttentionArgs& a, const Tile& tile, int kv_head, int index) {
    extern __shared__ __align__(128) uint8_t split_memory[];
    SplitMemory<HD>& my = *reinterpret_cast<SplitMemory<HD>*>(split_memory);
    int group = a.heads / a.kv_heads, warp = threadIdx.x / 32, seen = seen_of(a, tile, index);
    if (seen <= 0 || index < first_split(a, tile.position0 + tile.first / group)) return;
    copy_pages(my, a, tile, kv_head, index, seen);
    Walker<HD> w(a, tile, kv_head);
    SplitPart<HD> part;
    split_by_block<HD>(part, w, my, index);
    bool is_alone = a.splits == 1;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t at;
        if (!w.place(r, at)) continue;
        float* to = is_alone ? a.out + at * HD : a.partial + (at * a.splits + index) * (HD + 2);
        if (!is_alone && warp == 0 && w.lane.t == 0) {
            to[HD] = part.max[r];
            to[HD + 1] = part.sum[r];
        }
        if (is_alone && a.sinks) {
            const float factor = add_sink(a, at, part.max[r], part.sum[r]);
#pragma unroll
            for (int c = 0; c < SPLIT_COLUMNS<HD>; c++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++) part.o[c][i] = __fmul_rn(part.o[c][i], factor);
        }
#pragma unroll
        for (int c = 0; c < SPLIT_COLUMNS<HD>; c++) {
            int n = warp + c * SPLIT_WARPS;
            if (n >= HD / 8) break;
            float2 o = make_float2(part.o[c][2 * r], part.o[c][2 * r + 1]);
            if (is_alone) o = make_float2(__fdiv_rn(o.x, part.sum[r]), __fdiv_rn(o.y, part.sum[r]));
            *reinterpret_cast<float2*>(to + 8 * n + 2 * w.lane.t) = o;
        }
    }
}
