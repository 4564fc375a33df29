// A checksum of memory that must not change: the sum over its 64-bit words, each mixed with its
// place (reference/checksum.rs).
//
// Integer addition has no order, so blocks and threads may add as they come. The mix of one word
// is a bijection, so a single word that changed always changes the sum.
//
// The loop is grid-stride: 16 bytes a thread and load, four loads under way, streamed past the L2 cache.
// Every byte is read once; the test `a_look_costs_little` bounds the time.
#pragma once
#include "common.cuh"

struct ChecksumArgs {
    const uint4* words;  // [pairs] of two 64-bit words each
    unsigned long long* sum;  // added to
    uint64_t pairs;
    uint64_t first;  // place of the first 64-bit word
};
LAYOUT(ChecksumArgs, 32, AT(words, 0) AT(sum, 8) AT(pairs, 16) AT(first, 24))

DEVICE uint64_t mixed(uint64_t word, uint64_t place) {
    uint64_t x = word ^ (place * 0x9E3779B97F4A7C15ull);
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
    return x ^ (x >> 29);
}

DEVICE uint64_t mixed_pair(uint4 v, uint64_t place) {
    return mixed(uint64_t(v.y) << 32 | v.x, place) + mixed(uint64_t(v.w) << 32 | v.z, place + 1);
}

extern "C" __global__ void __launch_bounds__(256) checksum(const __grid_constant__ ChecksumArgs a) {
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    uint64_t sum = 0;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < a.pairs; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j * stride < a.pairs) v[j] = __ldcs(a.words + i + j * stride);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j * stride < a.pairs) sum += mixed_pair(v[j], a.first + 2 * (i + j * stride));
    }
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    if ((threadIdx.x & 31) == 0) atomicAdd(a.sum, (unsigned long long)sum);
}
