// Pages of recurrent states (device/common/states.rs). Of each block of PAGE positions a unit of a layer keeps rows, one for each
// position, and then a state, in a page of F32.
#pragma once
#include "kv.cuh"

// Where the pages of states are.
struct StatePages {
    float* pages;
    uint64_t page_stride;  // floats
    const int* tables;     // of the blocks of this step and those before: [blocks][groups]
    int groups;            // pages of a block
    int first;             // the layer's first unit among those of all layers
    int per_page;          // units
    int unit;              // floats
};
LAYOUT(StatePages, 40, AT(pages, 0) AT(page_stride, 8) AT(tables, 16) AT(groups, 24) AT(first, 28) AT(per_page, 32) AT(unit, 36))

// A token of the batch, in addition to `Row`.
struct StateRow {
    int pages;   // entry of its block in the tables; that of the block before is `groups` in front of it
    int before;  // rows of its sequence in front of it in the batch
};
LAYOUT(StateRow, 8, AT(pages, 0) AT(before, 4))

struct StateSequence {
    int row0, rows;
    int position0;
    int pages;  // of its first row
};
LAYOUT(StateSequence, 16, AT(row0, 0) AT(rows, 4) AT(position0, 8) AT(pages, 12))

// ln(1 + exp(x)). What is lost of exp(x) in the sum is added to the logarithm, divided by its derivative.
DEVICE float softplus(float x) {
    if (x > 20.0f) return x;
    const float e = expf(x), sum = __fadd_rn(1.0f, e);
    return __fadd_rn(logf(sum), __fdiv_rn(__fsub_rn(e, __fsub_rn(sum, 1.0f)), sum));
}

// A unit in the page of a block. `pages`: entry of the block.
DEVICE float* unit_at(const StatePages& s, int pages, int unit) {
    const int at = s.first + unit;
    const int page = s.tables[pages + at / s.per_page];
    return s.pages + uint64_t(page) * s.page_stride + at % s.per_page * s.unit;
}
