// The end of a tile of matmul_wgmma.cuh: its sums become outputs (matmul.cuh).
//
// Tensor cores wait meanwhile. So a tile without edges is written by as few instructions as there can be, and the unit of a
// pair is SiLU's: to choose one for each value takes longer than to compute it.
#pragma once
#include "glu.cuh"
#include "input_rows.cuh"
#include "matmul.cuh"

// An output is set, added to, or one of a pair.
enum WideEnding { SET, ADD, UNIT_OF_PAIR };

// A lane's outputs: a row of two tiles, at two of every eight rows of activations.
template <int WARPS> struct WideOutputs {
    const MatmulArgs& a;
    bool paired;  // part 0 is gate, part 1 up
    float up;     // power of two of the unit
    const Part* part[2];
    bool has_bias[2];
    float bias[2];
    int column[2];  // negative where there is no such weight row
    int g, t;

    // Of a tile whose weights begin with `tile0` of `first`.
    DEVICE WideOutputs(const MatmulArgs& args, bool paired, float up, const Part* first, int tile0, int warp, const Lane& lane)
        : a(args), paired(paired), up(up), g(lane.g), t(lane.t) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int n = (tile0 + warp + (paired ? 0 : i * WARPS)) * TILE_N + lane.g;
            part[i] = paired ? a.parts + i : first;
            bool real = n < part[i]->rows;
            has_bias[i] = part[i]->bias;
            bias[i] = real && has_bias[i] ? part[i]->bias[n] : 0.0f;
            column[i] = real ? (paired ? n : part[i]->column + n) : -1;
        }
    }

    DEVICE float finish(float total, float scale, int i) const {
        float v = __fmul_rn(total, scale);
        return has_bias[i] ? __fadd_rn(v, bias[i]) : v;
    }

    // An output has one block that adds to it, so nothing is waited for.
    DEVICE void put(float* to, float v) const {
        if (a.add) add_to_residual(to, v);
        else *to = v;
    }

    // The unit of a pair as an input of the next product. A lane has one of a column's two rows, with its neighbour of the
    // next column: `odd_row()` of the first eight, and from there on every eighth.
    DEVICE int odd_row() const { return 2 * t + (g & 1); }
    DEVICE uint32_t* input_at(int row) const {
        const InputRows inputs = {reinterpret_cast<__half*>(a.out), (a.rows + 7) / 8};
        return pair_at(inputs, row + odd_row(), column[0] & ~1);
    }
    static constexpr int INPUT_STEP = GROUP_HALVES / 2;  // words
    DEVICE uint32_t input_of(const float* sums, float2 scale) const {
        const float x = glu(SILU, finish(sums[0], scale.x, 0), finish(sums[2], scale.x, 1));
        const float y = glu(SILU, finish(sums[1], scale.y, 0), finish(sums[3], scale.y, 1));
        const bool odd = g & 1;
        const float other = __shfl_xor_sync(~0u, odd ? x : y, 4);
        return pack(__fmul_rn(odd ? other : x, up), __fmul_rn(odd ? y : other, up));
    }

    // Neither row is behind the end of its weight.
    DEVICE bool is_whole() const { return column[0] >= 0 && column[1] >= 0; }

    // Eight rows from `row` on, COUNT times, all of which exist.
    template <WideEnding ENDING, int COUNT> DEVICE void write_whole(const float* total, int row) const {
        const int64_t stride = a.out_stride;
        const float* scales = a.scale + row + 2 * t;
        float* to = ENDING == UNIT_OF_PAIR ? reinterpret_cast<float*>(input_at(row)) : a.out + (row + 2 * t) * stride + column[0];
        // Batches of loads that are under way together.
        constexpr int BATCH = COUNT < 8 ? COUNT : 8;
#pragma unroll
        for (int first = 0; first < COUNT; first += BATCH) {
            float2 scale[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                scale[j] = make_float2(a.scale_of_all, a.scale_of_all);
                if (a.scale) scale[j] = *reinterpret_cast<const float2*>(scales + 8 * (first + j));
            }
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                const float* sums = total + 4 * (first + j);
                if constexpr (ENDING == UNIT_OF_PAIR) {
                    *reinterpret_cast<uint32_t*>(to) = input_of(sums, scale[j]);
                    to += INPUT_STEP;
                } else {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float s = i == 0 ? scale[j].x : scale[j].y, *at = to + i * stride;
                        float low = finish(sums[i], s, 0), high = finish(sums[2 + i], s, 1);
                        if (ENDING == ADD) {
                            add_to_residual(at, low);
                            add_to_residual(at + WARPS * TILE_N, high);
                        } else {
                            at[0] = low;
                            at[WARPS * TILE_N] = high;
                        }
                    }
                    to += 8 * stride;
                }
            }
        }
    }

    // Eight rows from `row` on, COUNT times.
    template <int COUNT> DEVICE void write(const float* total, int row) const {
        float scale[COUNT][2];
        row += 2 * t;
#pragma unroll
        for (int j = 0; j < COUNT; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int r = row + 8 * j + i;
                scale[j][i] = a.scale_of_all;
                if (a.scale) scale[j][i] = r < a.rows ? a.scale[r] : 0.0f;
            }
        if (paired) {
            // Whole tiles have a column, or none.
            if (column[0] < 0) return;
            uint32_t* to = input_at(row - 2 * t);
#pragma unroll
            for (int j = 0; j < COUNT; j++, to += INPUT_STEP) {
                const uint32_t v = input_of(total + 4 * j, make_float2(scale[j][0], scale[j][1]));
                if (row - 2 * t + 8 * j + odd_row() < a.rows) *to = v;
            }
            return;
        }
#pragma unroll
        for (int j = 0; j < COUNT; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int r = row + 8 * j + i;
                if (r >= a.rows) continue;
                float low = finish(total[4 * j + i], scale[j][i], 0);
                float high = finish(total[4 * j + 2 + i], scale[j][i], 1);
                float* to = a.out + int64_t(r) * a.out_stride;
                if (column[0] >= 0) put(to + column[0], low);
                if (column[1] >= 0) put(to + column[1], high);
            }
    }
};
