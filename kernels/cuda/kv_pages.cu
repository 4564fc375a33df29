// Pages of the KV cache, from their first position on: their checksums, and copies of another process's pages with
// theirs.
//
// The checksum is that of checksum.cu over what belongs to these positions, with the page's first word as place 0,
// so that a page has the same wherever it lies. What is copied is summed as it was read: nobody else writes the
// copy, so the sum is that of the copy, whatever becomes of the original. The other positions are cleared.
//
// A line of blocks a page (blockIdx.y); 16 bytes a thread and load, four loads under way.
#pragma once
#include "checksum.cu"
#include "kv.cuh"

constexpr int PAGES_AT_ONCE = 256;
// Positions of a dimension's values that one load takes: a page is sealed up to a multiple of these.
constexpr int SEAL_EVERY = 8;
static_assert(SEAL_EVERY == PIECE);

// What a page holds: keys and values of layers with full attention, of layers with a window whose heads may differ, or
// states.
constexpr int KEYS_OF_WHOLE = 0;
constexpr int KEYS_OF_NEAR = 1;
constexpr int STATES = 2;

// In units of 16 bytes.
struct PageShape {
    uint32_t page;
    uint32_t half_layer[STATES];  // keys of a layer, or values, by kind of layer
    uint32_t head[STATES];
    uint32_t state_unit;  // of a recurrent state (delta_net.cu), of which a page has as many as fit
    uint32_t state_rows;  // SEAL_EVERY rows of such a unit
};
LAYOUT(PageShape, 28, AT(page, 0) AT(half_layer, 4) AT(head, 12) AT(state_unit, 20) AT(state_rows, 24))

struct SealPagesArgs {
    const uint4* pages;
    unsigned long long* sums;  // [blocks in y], added to
    PageShape shape;
    int list[PAGES_AT_ONCE];
    int tokens[PAGES_AT_ONCE];
    uint8_t kinds[PAGES_AT_ONCE];
};
LAYOUT(SealPagesArgs, 2352, AT(pages, 0) AT(sums, 8) AT(shape, 16) AT(list, 44) AT(tokens, 1068) AT(kinds, 2092))

struct AdoptPagesArgs {
    const uint4* theirs;
    uint4* ours;
    unsigned long long* sums;  // as above
    PageShape shape;
    int from[PAGES_AT_ONCE];
    int to[PAGES_AT_ONCE];
    int tokens[PAGES_AT_ONCE];
    uint8_t kinds[PAGES_AT_ONCE];
};
LAYOUT(AdoptPagesArgs, 3384, AT(theirs, 0) AT(ours, 8) AT(sums, 16) AT(shape, 24) AT(from, 52) AT(to, 1076) AT(tokens, 2100)
       AT(kinds, 3124))

// The first position that a unit of a page of states belongs to. The state, and what is behind the last state, belong to the
// last position.
DEVICE int position_in_states(const PageShape& shape, uint32_t unit) {
    if (unit / shape.state_unit == shape.page / shape.state_unit) return PAGE - 1;
    return min(int(unit % shape.state_unit / shape.state_rows) * SEAL_EVERY, PAGE - 1);
}

// The same for a page of keys and values.
DEVICE int position_of(const PageShape& shape, int kind, uint32_t unit) {
    const bool is_near = kind == KEYS_OF_NEAR;
    const uint32_t half_layer = is_near ? shape.half_layer[KEYS_OF_NEAR] : shape.half_layer[KEYS_OF_WHOLE];
    const uint32_t head = is_near ? shape.head[KEYS_OF_NEAR] : shape.head[KEYS_OF_WHOLE];
    bool is_value = unit / half_layer % 2;
    uint32_t in_head = unit % half_layer % head;
    uint32_t head_dim = head / (PAGE / PIECE);
    return is_value ? in_head / head_dim * PIECE : in_head % PAGE;
}

// Adds the checksum of a page's first positions to `sum`, and copies them.
template <bool COPIES>
DEVICE void sum_of_page(const PageShape& shape, int kind, const uint4* page, uint4* to, int tokens, unsigned long long* sum) {
    uint32_t stride = gridDim.x * blockDim.x;
    uint64_t mine = 0;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < shape.page; i += 4 * stride) {
        uint4 v[4];
        bool is_sealed[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t at = i + j * stride;
            const int position = kind == STATES ? position_in_states(shape, at) : position_of(shape, kind, at);
            is_sealed[j] = at < shape.page && position < tokens;
            v[j] = is_sealed[j] ? __ldcs(page + at) : uint4{};
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t at = i + j * stride;
            if (COPIES && at < shape.page) to[at] = v[j];
            if (is_sealed[j]) mine += mixed_pair(v[j], 2 * uint64_t(at));
        }
    }
    for (int d = 16; d > 0; d >>= 1) mine += __shfl_xor_sync(~0u, mine, d);
    if ((threadIdx.x & 31) == 0) atomicAdd(sum, (unsigned long long)mine);
}

extern "C" __global__ void __launch_bounds__(256) seal_pages(const __grid_constant__ SealPagesArgs a) {
    int y = blockIdx.y;
    const uint4* page = a.pages + uint64_t(a.list[y]) * a.shape.page;
    sum_of_page<false>(a.shape, a.kinds[y], page, nullptr, a.tokens[y], a.sums + y);
}

extern "C" __global__ void __launch_bounds__(256) adopt_pages(const __grid_constant__ AdoptPagesArgs a) {
    int y = blockIdx.y;
    const uint4* page = a.theirs + uint64_t(a.from[y]) * a.shape.page;
    uint4* to = a.ours + uint64_t(a.to[y]) * a.shape.page;
    sum_of_page<true>(a.shape, a.kinds[y], page, to, a.tokens[y], a.sums + y);
}
