// The inputs of a decode step's products: rows of x, attn or ff, prepared by every block alike.
//
// A row is polled until its words have come (exchange.cuh), and is F16 under one power of two in shared memory. Of a norm in
// norm.cuh's order: squares of 128 columns are summed by a warp, units are added in order, the largest value gives the scale.
// Rows without a norm have a bound (input_rows.cuh), and come as halves.
//
// A unit is polled and prepared by one warp of the block. Warps that multiply the same units prepare each a part of them, and
// wait for each other; of other warps they need nothing. A norm takes the consumer warps one barrier more: when all sums of
// squares and largest values are there.
#pragma once
#include "input_rows.cuh"
#include "ring.cuh"
#include "step_attention.cuh"

// Loads and stores at an address of shared memory.
DEVICE float load_float(Shared at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
DEVICE float4 load_floats(Shared at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}
DEVICE void store_float(Shared at, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory"); }

// Sums and maxima of rows that the warps of a block reduce through shared memory.
struct alignas(16) RowReduction {
    float squares[STEP_ROWS][MAX_UNITS];   // zero behind the last unit
    float largest[STEP_ROWS][STEP_WARPS];  // |value| of a warp's units
    float scales[STEP_ROWS];               // 2^e of each row
};

// Number of the barrier of the first segment's warps. The numbers before it are those of a block, of its consumers, and of
// teams of other blocks.
constexpr int SEGMENT_BARRIER = 2;

template <int STAGE> constexpr bool NORMALIZED = STAGE == QKV || STAGE == GATE_UP || STAGE == HEAD;

struct Input {
    const Word* from;
    const float* weight;  // of the norm, or null
    uint32_t tag;
    int cols;
    float up;  // power of two of rows without a norm
};

// A warp's work in a stage: one segment of every pair of tiles whose index is `pair` modulo pairs_per_pass.
// Segment s is the units s, s + segments, s + 2 segments, and so on. Units of the input are dealt to all warps that
// work, so those with the same segment prepare it together.
struct WarpWork {
    int pair, segment;
    int prepared;  // units of the input

    DEVICE WarpWork(const StageShape& s, int warp) {
        pair = s.segments.of(warp);
        segment = warp - pair * s.segments.by;
        prepared = works(s) ? s.workers.of(s.units.by - warp + s.workers.by - 1) : 0;
    }
    DEVICE bool works(const StageShape& s) const { return pair < s.pairs_per_pass.by; }
    // The warps with this segment have prepared their parts of its input.
    DEVICE void sync_segment(const StageShape& s) const {
        if (s.pairs_per_pass.by == 1) __syncwarp();
        else asm volatile("bar.sync %0, %1;" ::"r"(SEGMENT_BARRIER + segment), "r"(32 * s.pairs_per_pass.by) : "memory");
    }
};

// ALONE: there is one row.
template <bool ALONE> struct Inputs {
    static constexpr int ROWS = ALONE ? 1 : STEP_ROWS;

    const StepArgs& a;
    uint8_t* shared;
    Shared reduction;  // RowReduction: of a reference the address would be worked out at each use
    Shared at;         // of all inputs
    Lane lane;
    int warp;
    Divisor by_rows;

    DEVICE Inputs(const StepArgs& args, uint8_t* smem, RowReduction& m)
        : a(args), shared(smem), reduction(shared_address(&m)), at(shared_address(smem) + args.shared.inputs_at),
          warp(threadIdx.x / 32), by_rows(args.rows) {
        const int u = threadIdx.x;
        if (u < (a.n_embd + UNIT - 1) / UNIT || u >= MAX_UNITS) return;
#pragma unroll
        for (int r = 0; r < ROWS; r++) store_float(squares_at(r, u), 0.0f);
    }

    DEVICE Shared squares_at(int row, int unit) const { return reduction + 4 * (row * MAX_UNITS + unit); }
    DEVICE Shared largest_at(int row, int warp) const {
        return reduction + int(offsetof(RowReduction, largest)) + 4 * (row * STEP_WARPS + warp);
    }
    DEVICE Shared scale_at(int row) const { return reduction + int(offsetof(RowReduction, scales)) + 4 * row; }

    DEVICE int rows() const { return ALONE ? 1 : a.rows; }
    DEVICE uint8_t* all() const { return shared + a.shared.inputs_at; }
    DEVICE static int stride(const StageShape& s) { return s.units.by * 2 * UNIT + 64; }

    // A chunk: 128 columns of a row, of which a lane has four.
    struct Chunk {
        int row, unit, k;  // this lane's first column
    };
    // Chunk `i` of the warp: all rows of a unit follow each other.
    DEVICE Chunk chunk_at(const StageShape& s, int i) const {
        int nth = ALONE ? i : by_rows.of(i), unit = warp + nth * s.workers.by;
        return {ALONE ? 0 : i - nth * a.rows, unit, unit * UNIT + 4 * lane.id};
    }

    // The norm's weights. A lane starts the copy of those of its columns long before it needs them.
    DEVICE float* norm() const { return reinterpret_cast<float*>(shared + a.shared.norm_at); }
    DEVICE void fetch_norm(const StageShape& s, const Input& in) const {
#pragma unroll 1
        for (int u = warp; u < s.units.by; u += s.workers.by) {
            int k = u * UNIT + 4 * lane.id;
            if (k < in.cols)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                    ::"r"(shared_address(norm() + k)), "l"(in.weight + k) : "memory");
        }
    }

    // Polls the warp's chunks from `first` on, as many as `y` holds, until they have come; a norm's weights
    // are multiplied in. `visit` gets the values before that.
    template <int SIZE, typename Visit>
    DEVICE void poll_chunks(Four (&y)[SIZE], const StageShape& s, const Input& in, int first, int count, const Visit& visit) const {
        const Word* from = a.exchange.replica(in.from) + 2 * lane.id;
        bool arrived[SIZE], pending;
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            Chunk c = chunk_at(s, first + i);
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
                Chunk c = chunk_at(s, first + i);
                arrived[i] = poll_four(y[i], from + c.row * row_words(in.cols) + c.unit * UNIT, in.tag);
                pending |= !arrived[i];
            }
        } while (__any_sync(~0u, pending));
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            if (first + i >= count) continue;
            if (i == 0) asm volatile("cp.async.wait_all;" ::: "memory");
            visit(y[i], chunk_at(s, first + i));
            Four weight = four(norm(), chunk_at(s, first + i).k, in.cols);
#pragma unroll
            for (int j = 0; j < 4; j++) y[i].v[j] = __fmul_rn(y[i].v[j], weight.v[j]);
        }
    }

    // Polls chunks, sums their squares and finds their largest values.
    template <int SIZE>
    DEVICE void poll_and_reduce(Four (&y)[SIZE], float (&row_max)[ROWS], const StageShape& s, const Input& in, int first,
                                int count) const {
        poll_chunks(y, s, in, first, count, [&](const Four& f, const Chunk& c) {
            float sum = warp_sum(sum_of_squares(f));
            if (lane.id == 0) store_float(squares_at(c.row, c.unit), sum);
        });
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            float l = largest(y[i]);
            int row = chunk_at(s, first + i).row;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (ALONE || r == row) row_max[r] = fmaxf(row_max[r], l);
        }
    }

    // What a row behind a norm is multiplied by. Each of the first lanes has those of its row; of one row, all have them.
    struct Factors {
        float inverse, down;
    };
    template <int SIZE>
    DEVICE void write(const Four (&y)[SIZE], const Factors& factors, const StageShape& s, int first, int count) const {
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            if (first + i >= count) continue;
            Chunk c = chunk_at(s, first + i);
            const float over = ALONE ? factors.inverse : __shfl_sync(~0u, factors.inverse, c.row);
            const float smaller = ALONE ? factors.down : __shfl_sync(~0u, factors.down, c.row);
            float v[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = __fmul_rn(__fmul_rn(y[i].v[j], over), smaller);
            uint2 h = make_uint2(pack(v[0], v[1]), pack(v[2], v[3]));
            *reinterpret_cast<uint2*>(all() + c.row * stride(s) + 2 * c.k) = h;
        }
    }

    DEVICE float inverse_of(const StageShape& s, int row) const {
        const int units = s.units.by;
        const Shared squares = squares_at(row, 0);
        float4 next[2] = {load_floats(squares), load_floats(squares + 16)};
        float sum = 0.0f;
#pragma unroll 1
        for (int first = 0; first < units; first += 8) {
            const float4 v[2] = {next[0], next[1]};
            if (first + 8 < units) next[0] = load_floats(squares + 4 * first + 32), next[1] = load_floats(squares + 4 * first + 48);
#pragma unroll
            for (int i = 0; i < 2; i++)
                sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, v[i].x), v[i].y), v[i].z), v[i].w);
        }
        return inverse_norm(sum, a.n_embd, a.eps);
    }

    // Factors of rows behind a norm, when all sums of squares and largest values are there.
    DEVICE Factors factors_of(const StageShape& s) const {
        const int row = lane.id < rows() ? lane.id : 0;
        float max = 0.0f;
        if (ALONE) {
            max = lane.id < STEP_WARPS ? load_float(largest_at(0, lane.id)) : 0.0f;
            max = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(max)));
        } else {
#pragma unroll
            for (int w = 0; w < STEP_WARPS; w += 4) {
                const float4 v = load_floats(largest_at(row, w));
                max = fmaxf(max, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
            }
        }
        const float inverse = inverse_of(s, ALONE ? 0 : row);
        const int e = row_exponent(__fmul_rn(max, inverse));
        if (warp == 0 && lane.id < rows()) store_float(scale_at(row), power_of_two(e));
        return {inverse, power_of_two(-e)};
    }

    // Makes the input of a stage; SIZE chunks at a time of one without a norm.
    template <int STAGE, int SIZE> DEVICE void prepare(const StageShape& s, const WarpWork& my, const Input& in) {
        const int count = rows() * my.prepared;
        if (NORMALIZED<STAGE>) normalize(s, my, in, count);
        else take<SIZE>(s, my, in, count);
    }

    // Rows of halves, SIZE chunks at a time.
    template <int SIZE>
    DEVICE void take(const StageShape& s, const WarpWork& my, const Input& in, int count) {
        // Sums and scales of the stage before have been read: nothing else makes the warps wait for each other.
        sync_consumers();
        if (threadIdx.x < ROWS) store_float(scale_at(threadIdx.x), inverse_power(in.up));
        const Word* from = a.exchange.replica(in.from) + 2 * lane.id;
#pragma unroll 1
        for (int first = 0; first < count; first += SIZE) {
            Word w[SIZE][2];
            bool arrived[SIZE], pending;
#pragma unroll
            for (int i = 0; i < SIZE; i++) {
                arrived[i] = first + i >= count || chunk_at(s, first + i).k >= in.cols;
                w[i][0] = w[i][1] = 0;
            }
            do {
                pending = false;
#pragma unroll
                for (int i = 0; i < SIZE; i++) {
                    if (arrived[i]) continue;
                    const Chunk c = chunk_at(s, first + i);
                    load_two_words(w[i], from + c.row * row_words(in.cols) + c.unit * UNIT);
                    arrived[i] = tag_in(w[i][0]) == in.tag && tag_in(w[i][1]) == in.tag;
                    pending |= !arrived[i];
                }
            } while (__any_sync(~0u, pending));
#pragma unroll
            for (int i = 0; i < SIZE; i++) {
                if (first + i >= count) continue;
                const Chunk c = chunk_at(s, first + i);
                *reinterpret_cast<uint2*>(all() + c.row * stride(s) + 2 * c.k) = make_uint2(uint32_t(w[i][0]), uint32_t(w[i][1]));
            }
        }
        if (my.works(s)) my.sync_segment(s);
    }

    // Rows through a norm. A warp's first SIZE chunks stay in its registers; others are polled again, MORE at a time.
    DEVICE void normalize(const StageShape& s, const WarpWork& my, const Input& in, int count) {
        constexpr int SIZE = ALONE ? 2 : 4, MORE = 2;
        if (count > 0) fetch_norm(s, in);
        Four y[SIZE], more[MORE];
        float row_max[ROWS] = {};
        poll_and_reduce(y, row_max, s, in, 0, count);
#pragma unroll 1
        for (int first = SIZE; first < count; first += MORE) poll_and_reduce(more, row_max, s, in, first, count);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint32_t max = __reduce_max_sync(~0u, __float_as_uint(row_max[r]));
            if (lane.id == 0) store_float(largest_at(r, warp), __uint_as_float(max));
        }
        sync_consumers();
        if (!my.works(s)) return;
        const Factors factors = factors_of(s);
        write(y, factors, s, 0, count);
#pragma unroll 1
        for (int first = SIZE; first < count; first += MORE) {
            poll_chunks(more, s, in, first, count, [](const Four&, const Chunk&) {});
            write(more, factors, s, first, count);
        }
        my.sync_segment(s);
    }
};
