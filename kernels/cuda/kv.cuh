// Places of keys and values in the paged cache, as F16:
//
//   page -> layer -> keys   [kv_head][head_dim / 8][32 positions][8 dims]
//                    values [kv_head][32 / 8][head_dim][8 positions]
//
// Attention's two products both sum over the last index. Eight rows of 16 bytes each are 128 contiguous bytes:
// what ldmatrix reads at a time, and the core matrix of wgmma. A page of a head is one run of bytes for keys
// and one for values, so a bulk copy brings it to shared memory as it is.
#pragma once
#include "common.cuh"

constexpr int PAGE = 32;
constexpr int MAX_HEAD = 512;
// Columns of a head from which on it exceeds the registers of a warp.
constexpr int LARGE_HEAD = 256;
// Halves of a piece: dims of a key, or positions of a value's dim, that lie behind each other.
constexpr int PIECE = 8;

struct KvArgs {
    __half* pages;
    uint64_t page_stride;   // halves
    uint64_t layer_offset;  // halves, within a page
    const int* tables;      // page tables of all sequences
};
LAYOUT(KvArgs, 32, AT(pages, 0) AT(page_stride, 8) AT(layer_offset, 16) AT(tables, 24))

// The first key of a head in a page, and its first value.
DEVICE __half* key_at(const KvArgs& kv, int page, int kv_head, int head_dim) {
    return kv.pages + uint64_t(page) * kv.page_stride + kv.layer_offset + kv_head * PAGE * head_dim;
}
DEVICE __half* value_at(const KvArgs& kv, int page, int kv_head, int kv_heads, int head_dim) {
    return key_at(kv, page, kv_heads + kv_head, head_dim);
}
// Of a head's keys in a page: where dims PIECE * piece and behind of the key at `slot` are.
DEVICE int key_piece(int piece, int slot) { return (piece * PAGE + slot) * PIECE; }
// Of a head's values in a page: where slots PIECE * piece and behind of dim `dim` are.
DEVICE int value_piece(int piece, int dim, int head_dim) { return (piece * head_dim + dim) * PIECE; }
// The same for a single dim, or a single slot.
DEVICE int key_place(int slot, int dim) { return key_piece(dim / PIECE, slot) + dim % PIECE; }
DEVICE int value_place(int slot, int dim, int head_dim) {
    return value_piece(slot / PIECE, dim, head_dim) + slot % PIECE;
}
