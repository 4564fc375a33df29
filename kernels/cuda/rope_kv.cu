// The kernel of rope_kv.cuh: one warp a head of a token, or one thread a pair of columns.
#pragma once
#include "hopper.cuh"
#include "rope_kv.cuh"

// The place of a head's column: among the queries or in the KV cache.
DEVICE __half* rope_destination(const RopeArgs& a, int row, int h, int column, const Row& r, int page) {
    if (h < a.heads) return a.q + (int64_t(row) * a.heads + h) * a.head_dim + column;
    int slot = r.position % PAGE;
    h -= a.heads;
    if (h < a.kv_heads) return key_at(a.kv, page, h, a.head_dim) + key_place(slot, column);
    return value_at(a.kv, page, h - a.kv_heads, a.kv_heads, a.head_dim) + value_place(slot, column, a.head_dim);
}

// Rows in which the query of each head may be followed by as many gates (gated_rows.cu), which stay where they are.
struct RopeRowsArgs {
    RopeArgs rope;
    int per_query;  // heads of qkv for each query
    int clears;     // pages may have held states, whose floats may be no numbers as halves
    int keys_are_values;    // values are what was projected as keys
    int normalizes_values;  // by a norm without weights
};
LAYOUT(RopeRowsArgs, 128, AT(rope, 0) AT(per_query, 112) AT(clears, 116) AT(keys_are_values, 120) AT(normalizes_values, 124))

// Head `h` of a row, in the order of queries, keys and values.
template <bool OF_VALUES> DEVICE const float* head_at(const RopeRowsArgs& args, int row, int h) {
    const RopeArgs& a = args.rope;
    const int queries = a.heads * args.per_query, width = queries + 2 * a.kv_heads;
    int place = h < a.heads ? h * args.per_query : queries + h - a.heads;
    if (OF_VALUES && args.keys_are_values && h >= a.heads + a.kv_heads) place -= a.kv_heads;
    return a.qkv + (int64_t(row) * width + place) * a.head_dim;
}

// The norm of a value, in place in `head` (shared memory, private to the warp).
DEVICE void normalize_value(const RopeArgs& a, float* head) {
    const float inverse = inverse_of_head(a, head);
    for (int i = threadIdx.x & 31; i < a.head_dim; i += 32) head[i] = __fmul_rn(head[i], inverse);
    __syncwarp();
}

// End of the slots of a page that this row writes: its own, and behind the last row of a sequence that has begun a page here, all.
// Attention reads whole pages.
DEVICE int end_of_slots(const RopeRowsArgs& args, int row) {
    const Row* rows = args.rope.rows;
    const int table = rows[row].table, slot = rows[row].position % PAGE;
    if (!args.clears || row < slot || rows[row - slot].table != table) return slot + 1;
    const bool is_last = row + 1 == gridDim.x || rows[row + 1].table != table;
    return is_last ? PAGE : slot + 1;
}

// Zeros in the slots behind a row's own, in a column of a head of keys or values.
DEVICE void clear_column(const RopeArgs& a, const Row& r, int end, int h, int column, int page) {
    const int kv_head = h - a.heads;
    for (int slot = r.position % PAGE + 1; slot < end; slot++) {
        if (kv_head < a.kv_heads) key_at(a.kv, page, kv_head, a.head_dim)[key_place(slot, column)] = __half();
        else value_at(a.kv, page, kv_head - a.kv_heads, a.kv_heads, a.head_dim)[value_place(slot, column, a.head_dim)] = __half();
    }
}

constexpr int ROPE_THREADS = 256;

// The grid is (rows, parts of a row). Without norms of heads no column needs more than its pair, so each
// thread takes one pair of any head and none waits for another.
//
// LARGEST: columns of a head, at most. OF_VALUES: values may be what was projected as keys, or have norms.
template <int LARGEST, bool OF_VALUES> DEVICE void rope_rows(const RopeRowsArgs& args) {
    __shared__ float heads[8][LARGEST];
    const RopeArgs& a = args.rope;
    launch_dependents();
    grid_dependency_wait();
    int row = blockIdx.x, n_heads = a.heads + 2 * a.kv_heads;
    const Row r = a.rows[row];
    const int slot = r.position % PAGE, end = end_of_slots(args, row);
    if (a.q_norm || a.k_norm || (OF_VALUES && args.normalizes_values)) {
        int warp = threadIdx.x / 32, warps = 8 * gridDim.y;
        for (int h = 8 * blockIdx.y + warp; h < n_heads; h += warps) {
            const float* from = head_at<OF_VALUES>(args, row, h);
            for (int i = threadIdx.x & 31; i < a.head_dim; i += 32) heads[warp][i] = from[i];
            __syncwarp();
            rope_head(a, heads[warp], row, h);
            if (h < a.heads) continue;
            if (OF_VALUES && args.normalizes_values && h >= a.heads + a.kv_heads) normalize_value(a, heads[warp]);
            append_kv(a, heads[warp], row, h);
            if (end == slot + 1) continue;
            const int page = a.kv.tables[r.table + r.position / PAGE];
            for (int i = threadIdx.x & 31; i < a.head_dim; i += 32) clear_column(a, r, end, h, i, page);
        }
        return;
    }
    int pairs = a.head_dim / 2, i = blockIdx.y * 256 + threadIdx.x, h = i / pairs, pair = i % pairs;
    if (h >= n_heads) return;
    bool rotated = h < a.heads + a.kv_heads && pair < a.dims / 2, apart = rotated && a.half_offset;
    int p = apart ? pair : 2 * pair, q = apart ? pair + a.dims / 2 : 2 * pair + 1;
    const float* head = head_at<OF_VALUES>(args, row, h);
    float x = head[p], y = head[q];
    int page = h < a.heads ? 0 : a.kv.tables[r.table + r.position / PAGE];
    if (rotated) {
        float2 cos_sin = a.rope_table[int64_t(r.position) * (a.dims / 2) + pair];
        float u = __fmaf_rn(x, cos_sin.x, -__fmul_rn(y, cos_sin.y));
        y = __fmaf_rn(x, cos_sin.y, __fmul_rn(y, cos_sin.x));
        x = u;
    }
    float temperature = h < a.heads ? temperature_of(a, r.position) : 1.0f;
    *rope_destination(a, row, h, p, r, page) = __float2half_rn(__fmul_rn(x, temperature));
    *rope_destination(a, row, h, q, r, page) = __float2half_rn(__fmul_rn(y, temperature));
    if (h < a.heads || end == slot + 1) return;
    clear_column(a, r, end, h, p, page);
    clear_column(a, r, end, h, q, page);
}

extern "C" __global__ void __launch_bounds__(ROPE_THREADS) rope_kv(const __grid_constant__ RopeRowsArgs args) {
    rope_rows<LARGE_HEAD, false>(args);
}
// Of models with larger heads, or with values that are keys or have norms.
extern "C" __global__ void __launch_bounds__(ROPE_THREADS) rope_kv_of_values(const __grid_constant__ RopeRowsArgs args) {
    rope_rows<MAX_HEAD, true>(args);
}
