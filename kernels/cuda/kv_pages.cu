// Whole pages of the KV cache: their checksums, and copies of another process's pages with theirs.
//
// The checksum is that of checksum.cu, with the page's first word as place 0, so that a page has the same
// wherever it lies. What is copied is summed as it was read: nobody else writes the copy, so the sum is that of
// the copy, whatever becomes of the original.
//
// A line of blocks a page (blockIdx.y); 16 bytes a thread and load, four loads under way.
#pragma once
#include "checksum.cu"

constexpr int PAGES_AT_ONCE = 256;

struct SealPagesArgs {
    const uint4* pages;
    unsigned long long* sums;  // [blocks in y], added to
    uint64_t pairs;            // of 64-bit words, in a page
    int list[PAGES_AT_ONCE];
};
LAYOUT(SealPagesArgs, 1048, AT(pages, 0) AT(sums, 8) AT(pairs, 16) AT(list, 24))

struct AdoptPagesArgs {
    const uint4* theirs;
    uint4* ours;
    unsigned long long* sums;  // as above
    uint64_t pairs;
    int from[PAGES_AT_ONCE];
    int to[PAGES_AT_ONCE];
};
LAYOUT(AdoptPagesArgs, 2080, AT(theirs, 0) AT(ours, 8) AT(sums, 16) AT(pairs, 24) AT(from, 32) AT(to, 1056))

// Adds the checksum of a page to `sum`, and copies it.
template <bool COPIES>
DEVICE void sum_of_page(const uint4* page, uint4* to, uint64_t pairs, unsigned long long* sum) {
    uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    uint64_t mine = 0;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < pairs; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j * stride < pairs) v[j] = __ldcs(page + i + j * stride);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint64_t at = i + j * stride;
            if (at >= pairs) continue;
            if (COPIES) to[at] = v[j];
            mine += mixed_pair(v[j], 2 * at);
        }
    }
    for (int d = 16; d > 0; d >>= 1) mine += __shfl_xor_sync(~0u, mine, d);
    if ((threadIdx.x & 31) == 0) atomicAdd(sum, (unsigned long long)mine);
}

extern "C" __global__ void __launch_bounds__(256) seal_pages(const __grid_constant__ SealPagesArgs a) {
    const uint4* page = a.pages + a.list[blockIdx.y] * a.pairs;
    sum_of_page<false>(page, nullptr, a.pairs, a.sums + blockIdx.y);
}

extern "C" __global__ void __launch_bounds__(256) adopt_pages(const __grid_constant__ AdoptPagesArgs a) {
    const uint4* page = a.theirs + a.from[blockIdx.y] * a.pairs;
    uint4* to = a.ours + a.to[blockIdx.y] * a.pairs;
    sum_of_page<true>(page, to, a.pairs, a.sums + blockIdx.y);
}
