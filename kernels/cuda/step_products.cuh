// The products of a decode step: what a block that multiplies does in one stage.
//
// Its inputs are in shared memory (step_inputs.cuh). Segments of tiles are dealt to warps in turn
// (matmul.cuh's order); their sums meet in shared memory, and a thread finishes an output.
#pragma once
#include "argmax.cu"
#include "step_inputs.cuh"

// An output that a thread will finish, and what can be known of it before its sum is there.
struct Output {
    int n;  // of the whole stage; negative: none
    bool has_bias, has_up_bias;
    float bias, up_bias;
    const Word* old;  // of the stream
    Word old_word;
};

template <bool ALONE> struct Products : Plan {
    Inputs<ALONE> inputs;
    Ring ring;
    Lane lane;
    int warp;

    int piece0;  // of the stage
    int asked;   // pieces that are known to be under way
    // The outputs of this thread: one row, and of each four tiles a column.
    int row, column, tile0, tile_step;
    uint64_t best;

    DEVICE Products(const Plan& p, uint8_t* room, Meeting& m, const Ring& r)
        : Plan(p), inputs(p.a, room, m), ring(r), warp(threadIdx.x / 32), piece0(0), asked(0), best(0) {
        int warps = STEP_WARPS / rows();  // a row
        row = ALONE ? 0 : warp / warps;
        column = lane.id & 7;
        tile0 = (warp - row * warps) * 4 + lane.id / 8;
        tile_step = 4 * warps;
    }

    DEVICE int rows() const { return inputs.rows(); }
    DEVICE float* sums() const { return reinterpret_cast<float*>(inputs.shared + a.sums_at); }

    // ---- products ----

    // Fragments of a unit of the input, as the tensor core wants them: rows 8 to 15 are zero.
    struct Fragments {
        uint32_t a[2 * CHUNKS][4];
    };
    DEVICE void load_rows(Fragments& x, const uint8_t* input) const {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (lane.g < rows()) v = *reinterpret_cast<const uint4*>(input + 64 * c);
            uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x.a[2 * c + i / 2][2 * (i & 1)] = pairs[i];
                x.a[2 * c + i / 2][2 * (i & 1) + 1] = 0;
            }
        }
    }

    // A unit of N tiles, in the order of `multiply` in weights.cuh.
    template <int T, int N>
    DEVICE void unit(float (&d)[N][4], const Fragments& x, const uint8_t* const (&slot)[N]) const {
        constexpr int GROUP = Weights<T>::GROUP;
        Weights<T> w[N][CHUNKS / GROUP];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < CHUNKS / GROUP; i++) w[n][i].template load<false>(slot[n], lane, i);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int plane = 0; plane < Weights<T>::PLANES; plane++) {
                uint32_t b[N][4];
#pragma unroll
                for (int n = 0; n < N; n++) w[n][c / GROUP].fragment(c % GROUP, plane, b[n]);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t(&a)[4] = x.a[2 * c + i];
#pragma unroll
                    for (int n = 0; n < N; n++)
                        mma(d[n], a[0], a[1], a[2], a[3], b[n][2 * i], b[n][2 * i + 1]);
                }
            }
    }

    template <int ONLY>
    DEVICE void any_unit(int type, float (&d)[1][4], const Fragments& x, const uint8_t* const (&slot)[1]) const {
        if (ONLY != ANY) return unit<ONLY == ANY ? F16 : ONLY>(d, x, slot);
        switch (type) {
            case F16: return unit<F16>(d, x, slot);
            case F32: return unit<F32>(d, x, slot);
            case Q8_0: return unit<Q8_0>(d, x, slot);
            case Q4_0: return unit<Q4_0>(d, x, slot);
            case Q4_1: return unit<Q4_1>(d, x, slot);
            case Q5_0: return unit<Q5_0>(d, x, slot);
            case Q5_1: return unit<Q5_1>(d, x, slot);
            case Q4_K: return unit<Q4_K>(d, x, slot);
            case Q5_K: return unit<Q5_K>(d, x, slot);
            case Q6_K: return unit<Q6_K>(d, x, slot);
        }
    }

    // A warp takes one segment of every tile of its turn. So where a segment is one unit, its
    // input stays in registers.
    template <int ONLY>
    DEVICE void multiply_group(const Shape& s, int layer, int stage, int first, int tiles) {
        const int turn = s.segments.of(warp), segment = warp - turn * s.segments.by;
        if (turn >= s.abreast) return;
        const int u0 = segment * s.length, end = min(u0 + s.length, int(s.units.by));
        const int skipped = s.piece.of(u0), at0 = u0 - skipped * s.piece.by;
        const uint8_t* input0 = inputs.all() + lane.g * inputs.stride(s) + 16 * lane.t + u0 * 2 * UNIT;
        float* to = sums() + ((turn * s.segments.by + segment) * rows() + lane.g) * TILE_N + 2 * lane.t;
        int piece = piece0 + (first + turn) * s.pieces + skipped;
        Fragments x;
        load_rows(x, input0);
        const int step = s.abreast * s.pieces, to_step = s.abreast * s.segments.by * rows() * TILE_N;
        auto keep = [&](const float (&d)[4]) {
            if (lane.g < rows()) *reinterpret_cast<float2*>(to) = make_float2(d[0], d[1]);
            to += to_step;
            piece += step;
        };
        int t = turn;
        if (ALONE && ONLY != ANY && s.length == 1) {
            // Two tiles at a time: one's products run while the other's wait for each other.
            constexpr int T = ONLY == ANY ? F16 : ONLY;
            const int at = at0 * unit_bytes(T), units = at0 + 1 == s.piece.by || u0 + 1 == s.units.by ? PIECE_UNITS - at0 : 1;
#pragma unroll 1
            for (; t + s.abreast < tiles; t += 2 * s.abreast) {
                float d[2][4] = {};
                Slot one = ring.slot_of(piece), other = ring.slot_of(piece + step);
                ring.wait(one, piece, asked);
                ring.wait(other, piece + step, asked);
                unit<T>(d, x, {ring.room + one.at + at, ring.room + other.at + at});
                __syncwarp();
                if (lane.id == 0) {
                    ring.release(one, units);
                    ring.release(other, units);
                }
                keep(d[0]);
                keep(d[1]);
            }
        }
#pragma unroll 1
        for (; t < tiles; t += s.abreast) {
            int type = ONLY != ANY ? ONLY : place(layer, stage, first + t).part->type;
            float d[1][4] = {};
            int p = piece, at = at0, u = u0;
            for (;;) {
                Slot slot = ring.slot_of(p);
                ring.wait(slot, p, asked);
                any_unit<ONLY>(type, d, x, {ring.room + slot.at + at * unit_bytes(type)});
                bool last = ++at == s.piece.by || ++u == s.units.by;
                __syncwarp();
                if (lane.id == 0) ring.release(slot, last ? PIECE_UNITS - at + 1 : 1);
                if (s.length == 1) break;
                u = u0 + (p - piece) * s.piece.by + at - at0;
                load_rows(x, u < end ? input0 + (u - u0) * 2 * UNIT : input0);
                if (u == end) break;
                if (last) {
                    at = 0;
                    p++;
                }
            }
            keep(d[0]);
        }
    }

    // ---- outputs ----

    // Output tile `t` of a stage (of GATE_UP: pair).
    template <int STAGE> DEVICE Output aim(const Shape& s, int layer, int t) const {
        constexpr int PAIR = STAGE == GATE_UP ? 2 : 1;
        Output o = {-1};
        if (row >= rows() || t * PAIR >= s.tiles) return o;
        Place at = place(layer, STAGE, t * PAIR);
        int n = at.tile * TILE_N + column;
        if (n >= at.part->rows) return o;
        o.n = STAGE == QKV ? at.part->column + n : n;
        o.has_bias = at.part->bias;
        if (o.has_bias) o.bias = at.part->bias[n];
        if (PAIR == 2) {
            o.has_up_bias = at.part[1].bias;
            if (o.has_up_bias) o.up_bias = at.part[1].bias[n];
        }
        if (STAGE == OUTPUT || STAGE == DOWN) {
            o.old = a.exchange.heard(a.exchange.x) + row * a.n_embd + n;
            o.old_word = word_at(o.old);
        }
        return o;
    }

    DEVICE float total_of(const Shape& s, int t) const {
        const int segments = s.segments.by;
        const float* from = sums() + (t * segments * rows() + row) * TILE_N + column;
        float v[MAX_SEGMENTS], total = 0.0f;
#pragma unroll
        for (int j = 0; j < MAX_SEGMENTS; j++) v[j] = j < segments ? from[j * rows() * TILE_N] : 0.0f;
#pragma unroll
        for (int j = 0; j < MAX_SEGMENTS; j++) total = __fadd_rn(total, v[j]);
        return total;
    }

    DEVICE float scaled(float total, bool has_bias, float bias) const {
        float v = __fmul_rn(total, inputs.meet.scales[row]);
        return has_bias ? __fadd_rn(v, bias) : v;
    }

    // `t` counts tiles of the group; `number` is the stage's own.
    template <int STAGE> DEVICE void finish(const Shape& s, int t, uint32_t number, Output& o) {
        float v = scaled(total_of(s, STAGE == GATE_UP ? 2 * t : t), o.has_bias, o.bias);
        if (STAGE == HEAD) {
            a.logits[int64_t(row) * a.vocab + o.n] = v;
            if (!isfinite(v)) atomicOr(a.broken + row, 1u);
            uint64_t r = rank(v, o.n);
            best = r > best ? r : best;
        } else if (STAGE == QKV) {
            int width = (a.rope.heads + 2 * a.rope.kv_heads) * a.rope.head_dim;
            a.exchange.tell_all(a.exchange.qkv + row * width + o.n, v, number);
        } else if (STAGE == GATE_UP) {
            v = silu_mul(v, scaled(total_of(s, 2 * t + 1), o.has_up_bias, o.up_bias));
            a.exchange.tell_all(a.exchange.ff + row * a.n_ff + o.n, v, number);
        } else {
            // The stream as the stage before the last one but one left it.
            constexpr int AGO = STAGE == OUTPUT ? BY_OUTPUT : BY_DOWN - BY_OUTPUT;
            while (number_in(o.old_word) != number - AGO) o.old_word = word_at(o.old);
            a.exchange.tell_all(a.exchange.x + row * a.n_embd + o.n, __fadd_rn(value_in(o.old_word), v), number);
        }
    }

    // ---- stages ----

    template <int ONLY, int STAGE> DEVICE void stage(int layer, const Input& in, uint32_t number) {
        const Shape s = shapes[STAGE];
        if (s.tiles == 0) return;
        constexpr int PAIR_LOG = STAGE == GATE_UP ? 1 : 0;
        int t = tile0;
        if (NORMALIZED<STAGE>) inputs.fetch_norm(in.weight);
        Output o = aim<STAGE>(s, layer, t);
        inputs.template take<STAGE>(s, in);
#pragma unroll 1
        for (int first = 0; first < s.tiles; first += s.group) {
            int tiles = min(s.group, s.tiles - first);
            multiply_group<ONLY>(s, layer, STAGE, first, tiles);
            sync_computing();
#pragma unroll 1
            while (t < (first + tiles) >> PAIR_LOG) {
                if (o.n >= 0) finish<STAGE>(s, t - (first >> PAIR_LOG), number, o);
                t += tile_step;
                o = aim<STAGE>(s, layer, t);
            }
            if (first + tiles < s.tiles) sync_computing();
        }
        piece0 += s.tiles * s.pieces;
    }

    template <int ONLY> DEVICE void run() {
        const Exchange& e = a.exchange;
        const int attended = a.rope.heads * a.rope.head_dim;
        uint32_t before = a.number;  // of the layer's first exchange
#pragma unroll 1
        for (int layer = 0; layer < a.n_layers; layer++, before += EXCHANGES) {
            const StepLayer& l = layers[layer];
            stage<ONLY, QKV>(layer, {e.x, l.attn_norm, before, a.n_embd}, before + BY_QKV);
            stage<ONLY, OUTPUT>(layer, {e.attended, nullptr, before + BY_ATTENTION, attended}, before + BY_OUTPUT);
            stage<ONLY, GATE_UP>(layer, {e.x, l.ffn_norm, before + BY_OUTPUT, a.n_embd}, before + BY_GATE_UP);
            stage<ONLY, DOWN>(layer, {e.ff, nullptr, before + BY_GATE_UP, a.n_ff}, before + BY_DOWN);
        }
        stage<ONLY, HEAD>(a.n_layers - 1, {e.x, a.head_norm, before, a.n_embd}, 0);
        for (int d = 16; d > 0; d >>= 1) {
            uint64_t other = __shfl_xor_sync(~0u, best, d);
            best = other > best ? other : best;
        }
        if (lane.id == 0 && row < rows()) atomicMax(a.best + row, (unsigned long long)best);
    }
};
