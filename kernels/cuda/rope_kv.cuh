// Head norms and RoPE on queries and keys; keys and values into the KV cache.
//
// qkv is read once, as F32. Queries are written as F16 [row][head][dim], keys and values as F16 into
// pages (kv.cuh). A head norm sums four strided lanes' squares by a butterfly; rotation
// is x cos - y sin with one rounding for the product and one for the rest.
//
// Loops are not unrolled: `decode_step` executes more code a layer than instruction caches hold (bench/results/cuda.md).
#pragma once
#include "kv.cuh"

struct RopeArgs {
    const float* qkv;  // [rows, (heads + 2 kv_heads) * head_dim]
    const Row* rows;
    const float2* rope_table;  // [positions, dims / 2] cos, sin
    const float* q_norm;  // [head_dim] or null
    const float* k_norm;
    const float* temperature;  // [positions] that queries are multiplied by, or null
    __half* q;
    KvArgs kv;
    int heads, kv_heads, head_dim;
    int dims;  // that are rotated; none in some layers of some models
    int half_offset;
    float eps;
};
LAYOUT(RopeArgs, 112, AT(qkv, 0) AT(rows, 8) AT(rope_table, 16) AT(q_norm, 24) AT(k_norm, 32)
       AT(temperature, 40) AT(q, 48) AT(kv, 56) AT(heads, 88) AT(kv_heads, 92) AT(head_dim, 96) AT(dims, 100)
       AT(half_offset, 104) AT(eps, 108))

// What a query at this position is multiplied by behind its rotation.
DEVICE float temperature_of(const RopeArgs& a, int position) { return a.temperature ? a.temperature[position] : 1.0f; }

// Inverse of the root mean square of one head, by the lanes of a warp.
DEVICE float inverse_of_head(const RopeArgs& a, const float* head) {
    float s = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x & 31; i < a.head_dim; i += 32) s = __fmaf_rn(head[i], head[i], s);
    s = warp_sum(s);
    return __frsqrt_rn(__fadd_rn(__fdiv_rn(s, float(a.head_dim)), a.eps));
}

// Norm and RoPE of one head, in place in `head` (shared memory, private to the warp).
DEVICE void norm_and_rope(const RopeArgs& a, float* head, const float* norm, int position) {
    int lane = threadIdx.x & 31;
    if (norm) {
        const float inverse = inverse_of_head(a, head);
#pragma unroll 1
        for (int i = lane; i < a.head_dim; i += 32)
            head[i] = __fmul_rn(__fmul_rn(head[i], inverse), norm[i]);
        __syncwarp();
    }
    const float2* rope_table = a.rope_table + int64_t(position) * (a.dims / 2);
#pragma unroll 1
    for (int i = lane; i < a.dims / 2; i += 32) {
        int p = a.half_offset ? i : 2 * i, q = a.half_offset ? i + a.dims / 2 : 2 * i + 1;
        float2 cos_sin = rope_table[i];
        float x = head[p], y = head[q];
        head[p] = __fmaf_rn(x, cos_sin.x, -__fmul_rn(y, cos_sin.y));
        head[q] = __fmaf_rn(x, cos_sin.y, __fmul_rn(y, cos_sin.x));
    }
    __syncwarp();
}

// Head `h` of a row, found in `head`, and a query to its place: queries come first, then keys, then values.
DEVICE void rope_head(const RopeArgs& a, float* head, int row, int h) {
    int lane = threadIdx.x & 31;
    Row r = a.rows[row];
    if (h < a.heads + a.kv_heads) norm_and_rope(a, head, h < a.heads ? a.q_norm : a.k_norm, r.position);
    if (h >= a.heads) return;
    float temperature = temperature_of(a, r.position);
#pragma unroll 1
    for (int i = lane; i < a.head_dim; i += 32)
        a.q[(int64_t(row) * a.heads + h) * a.head_dim + i] = __float2half_rn(__fmul_rn(head[i], temperature));
}

// A key or a value, which `rope_head` has made, to its place.
DEVICE void append_kv(const RopeArgs& a, const float* head, int row, int h) {
    int lane = threadIdx.x & 31;
    Row r = a.rows[row];
    int page = a.kv.tables[r.table + r.position / PAGE], slot = r.position % PAGE;
    int kv_head = h - a.heads;
    if (kv_head < a.kv_heads) {
        __half* to = key_at(a.kv, page, kv_head, a.head_dim);
#pragma unroll 1
        for (int i = lane; i < a.head_dim; i += 32) to[key_place(slot, i)] = __float2half_rn(head[i]);
        return;
    }
    __half* to = value_at(a.kv, page, kv_head - a.kv_heads, a.kv_heads, a.head_dim);
#pragma unroll 1
    for (int i = lane; i < a.head_dim; i += 32) to[value_place(slot, i, a.head_dim)] = __float2half_rn(head[i]);
}
