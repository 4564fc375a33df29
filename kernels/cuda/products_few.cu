// Products of very few rows that make their own input: queries, keys and values behind their norm, and what is
// added to the stream behind attention. For models whose step is not one launch (decode_step.cu): one launch stands
// for two or three, of weights of every type.
//
// Block (32, 8): two neighbouring tiles of a weight, whose segments the warps share. Their first weights are on
// their way before the launch in front has ended, and while the block makes its rows (few_rows.cuh).
#pragma once
#include "few_rows.cuh"
#include "hopper.cuh"
#include "matmul.cuh"
#include "tile_ring.cuh"

constexpr int PRODUCT_WARPS = 8;
// Slots of a warp's ring; fewer of large units, so that three blocks of Q8_0 fit a multiprocessor, and all of a wide weight are
// there at once.
constexpr int PRODUCT_STAGES = 4;
constexpr int LARGE_STAGES = 3;
constexpr int LARGE_BYTES = 1024;
__host__ __device__ constexpr int product_stages(int type) { return unit_bytes(type) < LARGE_BYTES ? PRODUCT_STAGES : LARGE_STAGES; }

struct ProductsArgs {
    RowArgs input;         // `out`, `scale` and `groups` are not used; without a weight rows are taken as they are
    Part parts[MAX_PARTS];
    int n_parts, out_stride;
    int add, unused;
    float* out;            // [rows, out_stride]
};
LAYOUT(ProductsArgs, 232, AT(input, 0) AT(parts, 112) AT(n_parts, 208) AT(out_stride, 212) AT(add, 216)
       AT(unused, 220) AT(out, 224))

typedef float ProductSums[2][MAX_SEGMENTS][FEW_ROWS][TILE_N];

template <int T>
DEVICE void multiply_few(const ProductsArgs& a, const Part& part, int tile, uint8_t* smem, __half* x, FewRows& few,
                         ProductSums& sums) {
    const RowArgs& in = a.input;
    const int units = in.units, segments = segments_of(units), warp = threadIdx.y;
    Lane lane;
    TileRing<T, 2, product_stages(T)> ring(smem, warp);
    const int64_t tile_bytes = int64_t(units) * unit_bytes(T);
    const uint8_t* tiles[2] = {part.weight + tile * tile_bytes, part.weight + min(tile + 1, part.tiles - 1) * tile_bytes};
    SomeSegments walk(units, warp, PRODUCT_WARPS), ahead = walk;
    auto ask = [&](int slot) {
        if (ahead.is_there(segments)) {
            const uint8_t* const asked[2] = {tiles[0] + ahead.unit * unit_bytes(T), tiles[1] + ahead.unit * unit_bytes(T)};
            ring.ask(asked, slot, lane);
            ahead.next();
        }
        copies_done();
    };
#pragma unroll
    for (int i = 0; i < ring.STAGES; i++) ask(i);
    const FewWeights<PRODUCT_WARPS> weights(in);
    grid_dependency_wait();
    if (blockIdx.x == 0 && threadIdx.x == 0 && warp == 0) post(in.board + BOARD_STAGE, in.stage);
    make_few_rows(in, few, x, weights);
    float d[2][4] = {};
    while (walk.is_there(segments)) {
        const int segment = walk.segment;
        Rows rows[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) rows[c] = few_rows_at(x, in.rows, units, walk.unit, c, lane);
        const uint8_t* unit = ring.wait();
#pragma unroll
        for (int k = 0; k < 2; k++) multiply_unit<T>(d[k], unit + k * unit_bytes(T), rows, lane);
        const int slot = ring.slot;
        ring.release();
        ask(slot);
        if (walk.next()) continue;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (lane.g < in.rows)
                *reinterpret_cast<float2*>(&sums[k][segment][lane.g][2 * lane.t]) = make_float2(d[k][0], d[k][1]);
#pragma unroll
            for (int i = 0; i < 4; i++) d[k][i] = 0.0f;
        }
    }
}

DEVICE void products_of_few(const ProductsArgs& a) {
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ FewRows few;
    __shared__ ProductSums sums;
    launch_dependents();
    int tile = 2 * blockIdx.x, p = 0;
    for (; tile >= a.parts[p].tiles; p++) tile -= (a.parts[p].tiles + 1) / 2 * 2;
    const Part& part = a.parts[p];
    // Rows in front of the rings, which are as large as the type asks for.
    __half* x = reinterpret_cast<__half*>(smem);
    uint8_t* rings = smem + a.input.rows * a.input.units * UNIT * sizeof(__half);
    switch (part.ty) {
#define MULTIPLY_FEW(T) \
    case T: multiply_few<T>(a, part, tile, rings, x, few, sums); break;
        EACH_TYPE(MULTIPLY_FEW)
    }
    __syncthreads();
    // An output has a thread: of two tiles, and of every row.
    const int thread = threadIdx.y * 32 + threadIdx.x, n = thread % TILE_N, k = thread / TILE_N & 1;
    const int row = thread / (2 * TILE_N), column = (tile + k) * TILE_N + n;
    if (row >= a.input.rows || column >= part.rows) return;
    float total = 0.0f;
    for (int s = 0; s < segments_of(a.input.units); s++) total = __fadd_rn(total, sums[k][s][row][n]);
    float v = __fmul_rn(total, few.scale[row]);
    if (part.bias) v = __fadd_rn(v, part.bias[column]);
    float* out = a.out + int64_t(row) * a.out_stride + part.column + column;
    *out = a.add ? residual_sum(*out, v) : v;
}

extern "C" __global__ void FEW_BOUNDS(32 * PRODUCT_WARPS) products_few(const __grid_constant__ ProductsArgs a) {
    products_of_few(a);
}
