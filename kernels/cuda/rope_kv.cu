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

constexpr int ROPE_THREADS = 256;

// The grid is (rows, parts of a row). Without head norms no column needs more than its pair, so each
// thread takes one pair of any head and none waits for another.
extern "C" __global__ void __launch_bounds__(ROPE_THREADS) rope_kv(const __grid_constant__ RopeArgs a) {
    __shared__ float heads[8][MAX_HEAD];
    launch_dependents();
    grid_dependency_wait();
    int row = blockIdx.x, n_heads = a.heads + 2 * a.kv_heads;
    if (a.q_norm || a.k_norm) {
        int warp = threadIdx.x / 32, warps = 8 * gridDim.y;
        for (int h = 8 * blockIdx.y + warp; h < n_heads; h += warps) {
            const float* from = a.qkv + (int64_t(row) * n_heads + h) * a.head_dim;
            for (int i = threadIdx.x & 31; i < a.head_dim; i += 32) heads[warp][i] = from[i];
            __syncwarp();
            rope_head(a, heads[warp], row, h);
            if (h >= a.heads) append_kv(a, heads[warp], row, h);
        }
        return;
    }
    int pairs = a.head_dim / 2, i = blockIdx.y * 256 + threadIdx.x, h = i / pairs, pair = i % pairs;
    if (h >= n_heads) return;
    Row r = a.rows[row];
    bool rotated = h < a.heads + a.kv_heads && pair < a.dims / 2, apart = rotated && a.half_offset;
    int p = apart ? pair : 2 * pair, q = apart ? pair + a.dims / 2 : 2 * pair + 1;
    const float* head = a.qkv + (int64_t(row) * n_heads + h) * a.head_dim;
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
}
