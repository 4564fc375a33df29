// The kernel of embed.cuh. The grid is (tokens, parts of a row): where there are few tokens, a row has several blocks, because
// a thread waits for each of its columns.
#pragma once
#include "embed.cuh"
#include "hopper.cuh"

constexpr int EMBED_THREADS = 256;

extern "C" __global__ void embed(const __grid_constant__ EmbedArgs a) {
    launch_dependents();
    grid_dependency_wait();
    const int row = blockIdx.x, token = a.rows[row].token, bytes = unit_bytes(a.ty);
    const uint8_t* tile = a.table + uint64_t(token / TILE_N) * a.units * bytes;
    for (int k = blockIdx.y * EMBED_THREADS + threadIdx.x; k < a.cols; k += gridDim.y * EMBED_THREADS)
        a.x[int64_t(row) * a.cols + k] =
            __fmul_rn(weight_at(a.ty, tile + (k / UNIT) * bytes, token % TILE_N, k % UNIT), a.scale);
}
