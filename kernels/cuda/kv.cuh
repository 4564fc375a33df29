// Places of keys and values in the paged cache, as F16:
//
//   page -> layer -> keys   [kv_head][32 positions][head_dim]
//                    values [kv_head][head_dim][32 positions]
//
// Keys lie by position and values by dimension because attention's two products both want the
// summed index contiguous.
#pragma once
#include "common.cuh"

constexpr int PAGE = 32;
constexpr int MAX_HEAD = 128;

struct KvArgs {
    __half* pages;
    uint64_t page_stride;   // halves
    uint64_t layer_offset;  // halves, within a page
    const int* tables;      // page tables of all sequences
};
LAYOUT(KvArgs, 32, AT(pages, 0) AT(page_stride, 8) AT(layer_offset, 16) AT(tables, 24))

DEVICE __half* key_at(const KvArgs& kv, int page, int kv_head, int head_dim) {
    return kv.pages + uint64_t(page) * kv.page_stride + kv.layer_offset + kv_head * PAGE * head_dim;
}
DEVICE __half* value_at(const KvArgs& kv, int page, int kv_head, int kv_heads, int head_dim) {
    return key_at(kv, page, kv_heads + kv_head, head_dim);
}
