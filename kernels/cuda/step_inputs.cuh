// The inputs of a decode step's products: rows of x, attn or ff, prepared by every block alike.
//
// A row is polled until its words have come (exchange.cuh), is normalized or taken as it is, and becomes
// F16 under one power of two in shared memory. Of a norm in norm.cuh's order: squares of 128 columns are summed by
// a warp, units are added in order, the largest value gives the scale. A warp prepares the units that it
// multiplies. So a norm takes the consumer warps one barrier: when all sums of squares and largest values are
// there. Rows that are taken as they are have a bound (input_rows.cuh), and a warp waits for nobody else's part of them.
#pragma once
#include "input_rows.cuh"
#include "ring.cuh"
#include "step_attention.cuh"

// Sums and maxima of rows that the warps of a block reduce through shared memory.
struct RowReduction {
    float squares[STEP_ROWS][MAX_UNITS];
    float largest[STEP_ROWS][STEP_WARPS];  // |value| of a warp's units
    float scales[STEP_ROWS];               // 2^e of each row
};

template <int STAGE> constexpr bool NORMALIZED = STAGE == QKV || STAGE == GATE_UP || STAGE == HEAD;

struct Input {
    const Word* from;
    const float* weight;  // of the norm, or null
    uint32_t tag;
    int cols;
    float up;  // power of two of rows without a norm
};

// A warp's work in a stage: one segment of every pair of tiles whose index is `pair` modulo pairs_per_pass.
// Segment s is the units s, s + segments, s + 2 segments, and so on. Two warps with the same segment
// prepare the same units, each for itself, so neither waits for the other.
struct WarpWork {
    int pair, segment;
    int units;  // of the segment

    DEVICE WarpWork(const StageShape& s, int warp) {
        int segments = s.segments.by;
        pair = s.segments.of(warp);
        segment = warp - pair * segments;
        units = s.segments.of(s.units.by - segment + segments - 1);
    }
    DEVICE bool works(const StageShape& s) const { return pair < s.pairs_per_pass; }
};

// ALONE: there is one row.
template <bool ALONE> struct Inputs {
    static constexpr int ROWS = ALONE ? 1 : STEP_ROWS;

    const StepArgs& a;
    uint8_t* shared;
    RowReduction& reduction;
    Lane lane;
    int warp;
    Divisor by_rows;

    DEVICE Inputs(const StepArgs& args, uint8_t* smem, RowReduction& m)
        : a(args), shared(smem), reduction(m), warp(threadIdx.x / 32), by_rows(args.rows) {}

    DEVICE int rows() const { return ALONE ? 1 : a.rows; }
    DEVICE uint8_t* all() const { return shared + a.shared.inputs_at; }
    DEVICE static int stride(const StageShape& s) { return s.units.by * 2 * UNIT + 64; }

    // A chunk: 128 columns of a row, of which a lane has four.
    struct Chunk {
        int row, unit, k;  // this lane's first column
    };
    // Chunk `i` of the warp: all rows of a unit follow each other.
    DEVICE Chunk chunk_at(const StageShape& s, const WarpWork& my, int i) const {
        int nth = ALONE ? i : by_rows.of(i), unit = my.segment + nth * s.segments.by;
        return {ALONE ? 0 : i - nth * a.rows, unit, unit * UNIT + 4 * lane.id};
    }

    // The norm's weights. A lane starts the copy of those of its columns long before it needs them.
    DEVICE float* norm() const { return reinterpret_cast<float*>(shared + a.shared.norm_at); }
    DEVICE void fetch_norm(const StageShape& s, const WarpWork& my, const Input& in) const {
#pragma unroll 1
        for (int u = my.segment; u < s.units.by; u += s.segments.by) {
            int k = u * UNIT + 4 * lane.id;
            if (k < in.cols)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                    ::"r"(shared_address(norm() + k)), "l"(in.weight + k) : "memory");
        }
    }

    // Polls the warp's chunks from `first` on, as many as `y` holds, until they have come; a norm's weights
    // are multiplied in. `visit` gets the values before that.
    template <int STAGE, int SIZE, typename Visit>
    DEVICE void poll_chunks(Four (&y)[SIZE], const StageShape& s, const WarpWork& my, const Input& in, int first,
                     int count, const Visit& visit) const {
        const Word* from = a.exchange.replica(in.from) + 2 * lane.id;
        bool arrived[SIZE], pending;
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            Chunk c = chunk_at(s, my, first + i);
            arrived[i] = first + i >= count || c.k >= in.cols;
            y[i] = {{0, 0, 0, 0}};
        }
        // Loads in flight before the first of them has come; more would not fit in registers.
        constexpr int IN_FLIGHT = 3;
#pragma unroll
        for (int b = 0; b < SIZE; b += IN_FLIGHT) do {
            pending = false;
#pragma unroll
            for (int i = b; i < b + IN_FLIGHT && i < SIZE; i++) {
                if (arrived[i]) continue;
                Chunk c = chunk_at(s, my, first + i);
                arrived[i] = poll_four(y[i], from + c.row * row_words(in.cols) + c.unit * UNIT, in.tag);
                pending |= !arrived[i];
            }
        } while (__any_sync(~0u, pending));
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            if (first + i >= count) continue;
            if (NORMALIZED<STAGE> && i == 0)
                asm volatile("cp.async.wait_all;" ::: "memory");
            visit(y[i], chunk_at(s, my, first + i));
            if (!NORMALIZED<STAGE>) continue;
            Four weight = four(norm(), chunk_at(s, my, first + i).k, in.cols);
#pragma unroll
            for (int j = 0; j < 4; j++) y[i].v[j] = __fmul_rn(y[i].v[j], weight.v[j]);
        }
    }

    // Polls chunks, sums their squares and finds their largest values.
    template <int STAGE, int SIZE>
    DEVICE void poll_and_reduce(Four (&y)[SIZE], float (&row_max)[ROWS], const StageShape& s, const WarpWork& my,
                        const Input& in, int first, int count) const {
        poll_chunks<STAGE>(y, s, my, in, first, count, [&](const Four& f, const Chunk& c) {
            float sum = warp_sum(sum_of_squares(f));
            if (lane.id == 0 && my.pair == 0) reduction.squares[c.row][c.unit] = sum;
        });
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            float l = largest(y[i]);
            int row = chunk_at(s, my, first + i).row;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (ALONE || r == row) row_max[r] = fmaxf(row_max[r], l);
        }
    }

    template <int STAGE, int SIZE>
    DEVICE void write(const Four (&y)[SIZE], const float (&inverse)[ROWS], const float (&down)[ROWS],
                      const StageShape& s, const WarpWork& my, int first, int count) const {
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            if (first + i >= count) continue;
            Chunk c = chunk_at(s, my, first + i);
            float over = inverse[0], smaller = down[0];
#pragma unroll
            for (int r = 1; r < ROWS; r++)
                if (r == c.row) over = inverse[r], smaller = down[r];
            float v[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = __fmul_rn(NORMALIZED<STAGE> ? __fmul_rn(y[i].v[j], over) : y[i].v[j], smaller);
            uint2 h = make_uint2(pack(v[0], v[1]), pack(v[2], v[3]));
            *reinterpret_cast<uint2*>(all() + c.row * stride(s) + 2 * c.k) = h;
        }
    }

    DEVICE float inverse_of(const StageShape& s, int row) const {
        const int units = s.units.by;
        const float* squares = reduction.squares[row];
        float sum = 0.0f;
#pragma unroll 1
        for (int first = 0; first < units; first += 8)
#pragma unroll
            for (int c = first; c < first + 8; c++) sum = __fadd_rn(sum, c < units ? squares[c] : 0.0f);
        return inverse_norm(sum, a.n_embd, a.eps);
    }

    // Makes the input of a stage.
    template <int STAGE, int SIZE> DEVICE void prepare(const StageShape& s, const WarpWork& my, const Input& in) {
        const int count = my.works(s) ? rows() * my.units : 0;
        if (NORMALIZED<STAGE>) normalize<STAGE, SIZE>(s, my, in, count);
        else take<STAGE, SIZE>(s, my, in, count);
    }

    // Rows as they are, SIZE chunks at a time.
    template <int STAGE, int SIZE>
    DEVICE void take(const StageShape& s, const WarpWork& my, const Input& in, int count) {
        // Sums and scales of the stage before have been read: nothing else makes the warps wait for each other.
        sync_consumers();
        float up[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            up[r] = in.up;
            if (threadIdx.x == 0) reduction.scales[r] = inverse_power(in.up);
        }
#pragma unroll 1
        for (int first = 0; first < count; first += SIZE) {
            Four y[SIZE];
            poll_chunks<STAGE>(y, s, my, in, first, count, [](const Four&, const Chunk&) {});
            write<STAGE>(y, up, up, s, my, first, count);
        }
        __syncwarp();
    }

    // Rows through a norm. A warp's first SIZE chunks stay in its registers; others are polled again, MORE at a time.
    template <int STAGE, int SIZE>
    DEVICE void normalize(const StageShape& s, const WarpWork& my, const Input& in, int count) {
        constexpr int MORE = 2;
        if (count > 0) fetch_norm(s, my, in);
        Four y[SIZE], more[MORE];
        float row_max[ROWS] = {}, inverse[ROWS], down[ROWS];
        poll_and_reduce<STAGE>(y, row_max, s, my, in, 0, count);
#pragma unroll 1
        for (int first = SIZE; first < count; first += MORE) poll_and_reduce<STAGE>(more, row_max, s, my, in, first, count);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint32_t max = __reduce_max_sync(~0u, __float_as_uint(row_max[r]));
            if (lane.id == 0) reduction.largest[r][warp] = __uint_as_float(max);
        }
        sync_consumers();
        if (count == 0) return;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows()) continue;
            float max = lane.id < s.segments.by ? reduction.largest[r][lane.id] : 0.0f;
            max = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(max)));
            inverse[r] = inverse_of(s, r);
            int e = row_exponent(__fmul_rn(max, inverse[r]));
            down[r] = power_of_two(-e);
            if (warp == 0) reduction.scales[r] = power_of_two(e);
        }
        write<STAGE>(y, inverse, down, s, my, 0, count);
#pragma unroll 1
        for (int first = SIZE; first < count; first += MORE) {
            poll_chunks<STAGE>(more, s, my, in, first, count, [](const Four&, const Chunk&) {});
            write<STAGE>(more, inverse, down, s, my, first, count);
        }
        __syncwarp();
    }
};
