// Products of a mixture of experts: which rows an expert multiplies, and the end of an output.
//
// A row and one of the experts that it chose are a pair. Pairs of an expert lie behind each other, each at
// its place; a share is some of them that are multiplied together. Which rows those are follows from the
// whole batch, but what is made of a row does not: the order of additions is that of matmul.cuh, by the
// shape of one expert's weight alone.
//
// A weight holds the tiles of all experts, one expert behind the other, and so does a bias its rows.
#pragma once
#include "glu.cuh"
#include "hopper.cuh"
#include "matmul.cuh"

struct Choice {
    int expert;
    float weight;
};
LAYOUT(Choice, 8, AT(expert, 0) AT(weight, 4))

struct Share {
    int expert;
    int first, count;  // places
};
LAYOUT(Share, 12, AT(expert, 0) AT(first, 4) AT(count, 8))

// What a step's rows chose, as route.cu leaves it.
struct Routing {
    Choice* choices;  // [rows, used], the most likely first
    int* places;      // [rows, used]
    int* rows;        // of each place
    Share* shares;
    int* counts;      // shares; blocks of route.cu that are done
};
LAYOUT(Routing, 40, AT(choices, 0) AT(places, 8) AT(rows, 16) AT(shares, 24) AT(counts, 32))

struct ExpertsArgs {
    Part parts[2];       // of one type; `rows` and `tiles` are those of one expert, `bias` is [experts, rows]
    Routing routing;
    const __half* x;     // [rows, units * 128], or by place
    const float* scale;
    float* out;          // by place, [out_stride]
    int by_place;        // x and scale are
    int paired;          // parts are gate and up, and their gated linear unit is written; else there is one
    int units, out_stride;
    int activation;
    int unused;
};
LAYOUT(ExpertsArgs, 152, AT(parts, 0) AT(routing, 64) AT(x, 104) AT(scale, 112) AT(out, 120)
       AT(by_place, 128) AT(paired, 132) AT(units, 136) AT(out_stride, 140) AT(activation, 144)
       AT(unused, 148))

// The first unit of a tile of an expert.
template <int T> DEVICE const uint8_t* tile_of(const ExpertsArgs& a, int part, int expert, int tile) {
    const Part& p = a.parts[part];
    return p.weight + (int64_t(expert) * p.tiles + tile) * a.units * unit_bytes(T);
}

// The row of `x` at a place.
DEVICE int input_row(const ExpertsArgs& a, int place) { return a.by_place ? place : a.routing.rows[place]; }

// The bias of an expert, or null.
DEVICE const float* bias_of(const Part& p, int expert) {
    return p.bias ? p.bias + int64_t(expert) * p.rows : nullptr;
}
// Of the block's share, whose expert is read again: a register less for the loop in front of the ends.
DEVICE const float* bias_of_share(const ExpertsArgs& a, int part) {
    const Part& p = a.parts[part];
    return p.bias ? bias_of(p, a.routing.shares[blockIdx.y].expert) : nullptr;
}

// The end of an expert's output: the row's power of two, the bias.
DEVICE float ended(const float* bias, int column, float total, float scale) {
    const float v = __fmul_rn(total, scale);
    return bias ? __fadd_rn(v, bias[column]) : v;
}
// Of two neighbours: an expert's rows are a multiple of 8.
DEVICE float2 ended(const float* bias, int column, float2 total, float scale) {
    const float2 v = make_float2(__fmul_rn(total.x, scale), __fmul_rn(total.y, scale));
    if (!bias) return v;
    const float2 b = *reinterpret_cast<const float2*>(bias + column);
    return make_float2(__fadd_rn(v.x, b.x), __fadd_rn(v.y, b.y));
}

// Two neighbouring outputs of a lane, of both parts of a pair or of one.
DEVICE void write_pair(const ExpertsArgs& a, int place, int column, float2 gate, float2 up, float scale) {
    gate = ended(bias_of_share(a, 0), column, gate, scale);
    up = ended(bias_of_share(a, 1), column, up, scale);
    const float2 v = make_float2(glu(a.activation, gate.x, up.x), glu(a.activation, gate.y, up.y));
    *reinterpret_cast<float2*>(a.out + int64_t(place) * a.out_stride + column) = v;
}
DEVICE void write_one(const ExpertsArgs& a, int place, int column, float2 total, float scale) {
    const float2 v = ended(bias_of_share(a, 0), column, total, scale);
    *reinterpret_cast<float2*>(a.out + int64_t(place) * a.out_stride + a.parts[0].column + column) = v;
}
