// The inputs of a decode step's products: rows of the stream, of attention or of ff, prepared by
// every block alike.
//
// A row is normalized or taken as it is and becomes F16 under one power of two in shared memory, in
// norm.cu's order: chunks of 128 columns are dealt to warps in turn, their squares are added in
// order, their largest value gives the scale.
#pragma once
#include "ring.cuh"
#include "step_attention.cuh"

// What meets in shared memory between the warps of a block, beside inputs and sums.
struct Meeting {
    float squares[STEP_ROWS * MAX_UNITS];
    uint32_t largest[2][STEP_ROWS];  // bits of the largest |value|, of this stage and the next
    float scales[STEP_ROWS];         // 2^e of each row
};

template <int STAGE> constexpr bool NORMALIZED = STAGE == QKV || STAGE == GATE_UP || STAGE == HEAD;

struct Input {
    const Word* from;
    const float* weight;  // of the norm, or null
    uint32_t number;
    int cols;
};

// ALONE: there is one row.
template <bool ALONE> struct Inputs {
    const StepArgs& a;
    uint8_t* shared;
    Meeting& meet;
    Lane lane;
    int warp;
    int flip;  // which of `largest` is this stage's

    DEVICE Inputs(const StepArgs& args, uint8_t* room, Meeting& m)
        : a(args), shared(room), meet(m), warp(threadIdx.x / 32), flip(0) {}

    DEVICE int rows() const { return ALONE ? 1 : a.rows; }
    DEVICE uint8_t* all() const { return shared + a.inputs_at; }
    DEVICE static int stride(const Shape& s) { return s.units.by * 2 * UNIT + 64; }

    // A chunk of 128 columns: its row, and this lane's first column.
    struct Chunk {
        int row, k;
    };
    DEVICE Chunk chunk_at(const Shape& s, int chunk) const {
        int r = ALONE ? 0 : s.units.of(chunk);
        return {r, (chunk - r * int(s.units.by)) * UNIT + 4 * lane.id};
    }
    DEVICE bool hear(const Input& in, Four& y, const Chunk& c) const {
        return c.k >= in.cols || hear_four(y, a.exchange.heard(in.from) + c.row * in.cols + c.k, in.number);
    }

    // Chunks are dealt to warps in turn. Of a warp's first ones, HELD stay in registers and others
    // in shared memory until the row's scale is known; what has no room there is read again.
    static constexpr int ABREAST = 3;
    DEVICE float4* staged(int chunk) const {
        return reinterpret_cast<float4*>(shared + a.staged_at) + chunk * 32 + lane.id;
    }
    DEVICE void stage_value(int chunk, const Four& y) {
        if (chunk < a.staged_chunks) *staged(chunk) = make_float4(y.v[0], y.v[1], y.v[2], y.v[3]);
    }
    template <int HELD, typename What>
    DEVICE void each(const Shape& s, const Input& in, Four (&held)[ABREAST], const What& what) {
        const int chunks = rows() * s.units.by;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int chunk = warp + i * STEP_WARPS;
            if (chunk < chunks) what(chunk, chunk_at(s, chunk), held[i], true);
        }
#pragma unroll 1
        for (int chunk = warp + HELD * STEP_WARPS; chunk < chunks; chunk += STEP_WARPS) {
            Chunk c = chunk_at(s, chunk);
            Four y = {{0, 0, 0, 0}};
            bool kept = chunk < a.staged_chunks;
            if (kept) {
                float4 v = *staged(chunk);
                y = {{v.x, v.y, v.z, v.w}};
            } else {
                while (!hear(in, y, c)) {}
                __syncwarp();
            }
            what(chunk, c, y, kept);
        }
    }

    DEVICE float inverse_of(const Shape& s, int r) const {
        const int units = s.units.by;
        const float* squares = meet.squares + r * units;
        float sum = 0.0f;
#pragma unroll 1
        for (int first = 0; first < units; first += 8)
#pragma unroll
            for (int c = first; c < first + 8; c++) sum = __fadd_rn(sum, c < units ? squares[c] : 0.0f);
        return inverse_norm(sum, a.n_embd, a.eps);
    }

    // The norm's weights are read for the first time in this step: long before they are needed.
    DEVICE float* norm() const { return reinterpret_cast<float*>(shared + a.norm_at); }
    DEVICE void fetch_norm(const float* weight) {
        for (int i = 4 * threadIdx.x; i < a.n_embd; i += 4 * STEP_THREADS)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                ::"r"(shared_address(norm() + i)), "l"(weight + i) : "memory");
    }
    DEVICE Four normalized(const Shape& s, Four y, const Chunk& c) const {
        float inverse = inverse_of(s, c.row);
        Four w = four(norm(), c.k, a.n_embd);
#pragma unroll
        for (int j = 0; j < 4; j++) y.v[j] = __fmul_rn(__fmul_rn(y.v[j], inverse), w.v[j]);
        return y;
    }

    template <int STAGE> DEVICE void take(const Shape& s, const Input& in) {
        constexpr int HELD = !ALONE ? 0 : STAGE == DOWN ? ABREAST : 1;
        const int chunks = rows() * s.units.by;
        flip ^= 1;
        Four held[ABREAST] = {};
        bool come[ABREAST] = {};
        bool waits;
        // All are asked for before the first has come.
        do {
            waits = false;
#pragma unroll
            for (int i = 0; i < ABREAST; i++) {
                int chunk = warp + i * STEP_WARPS;
                if (chunk >= chunks) continue;
                if (!come[i]) come[i] = hear(in, held[i], chunk_at(s, chunk));
                waits |= !come[i];
            }
        } while (__any_sync(~0u, waits));
#pragma unroll
        for (int i = HELD; i < ABREAST; i++) {
            int chunk = warp + i * STEP_WARPS;
            if (chunk < chunks) stage_value(chunk, held[i]);  // each lane reads its own
        }
        if (NORMALIZED<STAGE>) {
            each<HELD>(s, in, held, [&](int chunk, const Chunk&, Four& y, bool) {
                float sum = warp_sum(sum_of_squares(y));
                if (lane.id == 0) meet.squares[chunk] = sum;
            });
            asm volatile("cp.async.wait_all;" ::: "memory");
            sync_computing();
        }
        each<HELD>(s, in, held, [&](int chunk, const Chunk& c, Four& y, bool kept) {
            if (NORMALIZED<STAGE>) {
                y = normalized(s, y, c);
                if (chunk >= HELD * STEP_WARPS && kept) stage_value(chunk, y);
            }
            uint32_t max = __reduce_max_sync(~0u, __float_as_uint(largest(y)));
            if (lane.id == 0) atomicMax(&meet.largest[flip][c.row], max);
        });
        sync_computing();
        if (threadIdx.x < STEP_ROWS) meet.largest[flip ^ 1][threadIdx.x] = 0;
        each<HELD>(s, in, held, [&](int, const Chunk& c, Four& y, bool kept) {
            if (NORMALIZED<STAGE> && !kept) y = normalized(s, y, c);
            int e = row_exponent(__uint_as_float(meet.largest[flip][c.row]));
            float down = power_of_two(-e);
            meet.scales[c.row] = power_of_two(e);
            uint2 h = make_uint2(pack(__fmul_rn(y.v[0], down), __fmul_rn(y.v[1], down)),
                                 pack(__fmul_rn(y.v[2], down), __fmul_rn(y.v[3], down)));
            *reinterpret_cast<uint2*>(all() + c.row * stride(s) + 2 * c.k) = h;
        });
        sync_computing();
    }
};
