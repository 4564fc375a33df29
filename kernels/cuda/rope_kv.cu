// Head norms and RoPE on queries and keys; keys and values into the KV cache. One warp a head of
// a token.
//
// Reads qkv F32 once; writes queries as F16 [row][head][dim], keys and values as F16 into
// pages (kv.cuh). A head norm sums four strided lanes' squares by a butterfly; rotation
// is x cos - y sin with one rounding for the product and one for the rest.
#pragma once
#include "kv.cuh"

struct RopeArgs {
    const float* qkv;  // [rows, (heads + 2 kv_heads) * head_dim]
    const Row* rows;
    const float2* turns;  // [positions, dims / 2] cos, sin
    const float* q_norm;  // [head_dim] or null
    const float* k_norm;
    __half* q;
    KvArgs kv;
    int heads, kv_heads, head_dim, dims, half_offset;
    float eps;
};

// One head, in place in `head` (shared, private to the warp).
DEVICE void turn_head(const RopeArgs& a, float* head, const float* norm, int position) {
    int lane = threadIdx.x & 31;
    if (norm) {
        float s = 0.0f;
        for (int i = lane; i < a.head_dim; i += 32) s = __fmaf_rn(head[i], head[i], s);
        s = warp_sum(s);
        float inverse = __frsqrt_rn(__fadd_rn(__fdiv_rn(s, float(a.head_dim)), a.eps));
        for (int i = lane; i < a.head_dim; i += 32)
            head[i] = __fmul_rn(__fmul_rn(head[i], inverse), norm[i]);
        __syncwarp();
    }
    const float2* turns = a.turns + int64_t(position) * (a.dims / 2);
    for (int i = lane; i < a.dims / 2; i += 32) {
        int p = a.half_offset ? i : 2 * i, q = a.half_offset ? i + a.dims / 2 : 2 * i + 1;
        float2 turn = turns[i];
        float x = head[p], y = head[q];
        head[p] = __fmaf_rn(x, turn.x, -__fmul_rn(y, turn.y));
        head[q] = __fmaf_rn(x, turn.y, __fmul_rn(y, turn.x));
    }
    __syncwarp();
}

// What becomes of head `h` of a row, found in `head`: queries, then keys, then values.
DEVICE void keep_head(const RopeArgs& a, float* head, int row, int h) {
    int lane = threadIdx.x & 31;
    Row r = a.rows[row];
    if (h < a.heads + a.kv_heads) turn_head(a, head, h < a.heads ? a.q_norm : a.k_norm, r.position);
    if (h < a.heads) {
        for (int i = lane; i < a.head_dim; i += 32)
            a.q[(int64_t(row) * a.heads + h) * a.head_dim + i] = __float2half_rn(head[i]);
        return;
    }
    int page = a.kv.tables[r.table + r.position / PAGE], slot = r.position % PAGE;
    int kv_head = h - a.heads;
    if (kv_head < a.kv_heads) {
        __half* to = key_at(a.kv, page, kv_head, a.head_dim) + slot * a.head_dim;
        for (int i = lane; i < a.head_dim; i += 32) to[i] = __float2half_rn(head[i]);
        return;
    }
    __half* to = value_at(a.kv, page, kv_head - a.kv_heads, a.kv_heads, a.head_dim) + slot;
    for (int i = lane; i < a.head_dim; i += 32) to[i * PAGE] = __float2half_rn(head[i]);
}

#ifndef DEVICE_FUNCTIONS_ONLY
#include "hopper.cuh"

// Where the column of a head goes.
DEVICE __half* rope_place(const RopeArgs& a, int row, int h, int column, const Row& r, int page) {
    if (h < a.heads) return a.q + (int64_t(row) * a.heads + h) * a.head_dim + column;
    int slot = r.position % PAGE;
    h -= a.heads;
    if (h < a.kv_heads) return key_at(a.kv, page, h, a.head_dim) + slot * a.head_dim + column;
    return value_at(a.kv, page, h - a.kv_heads, a.kv_heads, a.head_dim) + column * PAGE + slot;
}

// Grid (rows, parts of a row). Without head norms no column needs more than its pair, so each
// thread takes one pair of any head and none waits for another.
extern "C" __global__ void __launch_bounds__(256) rope_kv(const __grid_constant__ RopeArgs a) {
    __shared__ float heads[8][MAX_HEAD];
    let_next_begin();
    wait_for_previous();
    int row = blockIdx.x, n_heads = a.heads + 2 * a.kv_heads;
    if (a.q_norm || a.k_norm) {
        int warp = threadIdx.x / 32, warps = 8 * gridDim.y;
        for (int h = 8 * blockIdx.y + warp; h < n_heads; h += warps) {
            const float* from = a.qkv + (int64_t(row) * n_heads + h) * a.head_dim;
            for (int i = threadIdx.x & 31; i < a.head_dim; i += 32) heads[warp][i] = from[i];
            __syncwarp();
            keep_head(a, heads[warp], row, h);
        }
        return;
    }
    int pairs = a.head_dim / 2, i = blockIdx.y * 256 + threadIdx.x, h = i / pairs, pair = i % pairs;
    if (h >= n_heads) return;
    Row r = a.rows[row];
    bool turned = h < a.heads + a.kv_heads && pair < a.dims / 2, apart = turned && a.half_offset;
    int p = apart ? pair : 2 * pair, q = apart ? pair + a.dims / 2 : 2 * pair + 1;
    const float* head = a.qkv + (int64_t(row) * n_heads + h) * a.head_dim;
    float x = head[p], y = head[q];
    int page = h < a.heads ? 0 : a.kv.tables[r.table + r.position / PAGE];
    if (turned) {
        float2 turn = a.turns[int64_t(r.position) * (a.dims / 2) + pair];
        float u = __fmaf_rn(x, turn.x, -__fmul_rn(y, turn.y));
        y = __fmaf_rn(x, turn.y, __fmul_rn(y, turn.x));
        x = u;
    }
    *rope_place(a, row, h, p, r, page) = __float2half_rn(x);
    *rope_place(a, row, h, q, r, page) = __float2half_rn(y);
}
#endif
