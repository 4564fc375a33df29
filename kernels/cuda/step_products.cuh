// The products of a decode step: what a block that multiplies does in one stage.
//
// Its inputs are in shared memory (step_inputs.cuh). Segments of tiles are dealt to warps in turn
// (matmul.cuh's order); their sums meet in shared memory, and a thread finishes an output.
#pragma once
#include "argmax.cuh"
#include "step_inputs.cuh"

// An output that a thread will finish, and what can be known of it before its sum is there.
struct Output {
    int n;        // of the whole stage; negative: none
    uint32_t at;  // of the vector that the stage tells, word
    bool has_bias, has_up_bias;
    float bias, up_bias;
    const Word* old;  // of the stream
    Word old_word;
};

// Chunks of a vector that a warp keeps in registers; of ff, the widest, FF_CHUNKS.
template <bool ALONE> constexpr int KEPT_CHUNKS = ALONE ? 2 : 4;

template <bool ALONE, int FF_CHUNKS> struct Products : Plan {
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
    DEVICE float* sums() const { return reinterpret_cast<float*>(inputs.shared + a.shared.sums_at); }

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

    // A share's walk through tiles: where the next tile's sum goes, its first piece, its input.
    struct Walk {
        const Share& my;
        float* to;
        int piece, step, to_step;
        const uint8_t* input;
        Fragments x;
    };
    DEVICE void keep(Walk& w, const float (&d)[4]) const {
        if (lane.g < rows()) *reinterpret_cast<float2*>(w.to) = make_float2(d[0], d[1]);
        w.to += w.to_step;
        w.piece += w.step;
    }
    // Of PIECE_UNITS in all, what unit `at` of a piece says when it is done with.
    DEVICE static int done_by(const Shape& s, int u, int at) {
        return at + 1 == s.piece.by || u + 1 == s.units.by ? PIECE_UNITS - at : 1;
    }

    // One tile of type T: the units of the segment in turn.
    template <int T> DEVICE void tile(const Shape& s, Walk& w) {
        float d[1][4] = {};
        int u = w.my.segment;
        for (;;) {
            int skipped = s.piece.of(u), at = u - skipped * s.piece.by;
            Slot slot = ring.slot_of(w.piece + skipped);
            ring.wait(slot, w.piece + skipped, asked);
            unit<T>(d, w.x, {ring.room + slot.at + at * unit_bytes(T)});
            __syncwarp();
            if (lane.id == 0) ring.release(slot, done_by(s, u, at));
            if (s.is_short) break;  // its input stays in registers
            u += s.segments.by;
            bool last = u >= s.units.by;
            load_rows(w.x, last ? w.input : w.input + (u - w.my.segment) * 2 * UNIT);
            if (last) break;
        }
        keep(w, d[0]);
    }

    // Tiles of type T; returns the first that is left.
    template <int T> DEVICE int tiles(const Shape& s, Walk& w, int t, int end) {
        // Two at a time: one's products run while the other's wait for each other. Not where the
        // ring would not hold both.
        if (ALONE && s.is_short && Weights<T>::PLANES == 1 && w.step < ring.slots.by) {
            const int u = w.my.segment, skipped = s.piece.of(u), at = u - skipped * s.piece.by;
            const int from = at * unit_bytes(T), units = done_by(s, u, at);
#pragma unroll 1
            for (; t + s.abreast < end; t += 2 * s.abreast) {
                float d[2][4] = {};
                int p = w.piece + skipped;
                Slot one = ring.slot_of(p), other = ring.slot_of(p + w.step);
                ring.wait(one, p, asked);
                ring.wait(other, p + w.step, asked);
                unit<T>(d, w.x, {ring.room + one.at + from, ring.room + other.at + from});
                __syncwarp();
                if (lane.id == 0) {
                    ring.release(one, units);
                    ring.release(other, units);
                }
                keep(w, d[0]);
                keep(w, d[1]);
            }
        }
#pragma unroll 1
        for (; t < end; t += s.abreast) tile<T>(s, w);
        return t;
    }

    template <int ONLY> DEVICE int any_tiles(int type, const Shape& s, Walk& w, int t, int end) {
        if (ONLY != ANY) return tiles<ONLY == ANY ? F16 : ONLY>(s, w, t, end);
        switch (type) {
            case F32: return tiles<F32>(s, w, t, end);
            case Q8_0: return tiles<Q8_0>(s, w, t, end);
            case Q4_0: return tiles<Q4_0>(s, w, t, end);
            case Q4_1: return tiles<Q4_1>(s, w, t, end);
            case Q5_0: return tiles<Q5_0>(s, w, t, end);
            case Q5_1: return tiles<Q5_1>(s, w, t, end);
            case Q4_K: return tiles<Q4_K>(s, w, t, end);
            case Q5_K: return tiles<Q5_K>(s, w, t, end);
            case Q6_K: return tiles<Q6_K>(s, w, t, end);
            default: return tiles<F16>(s, w, t, end);
        }
    }

    // Of the stage's tiles those from `first` on.
    template <int ONLY>
    DEVICE void multiply_group(const Shape& s, const Share& my, int layer, int stage, int first, int tiles) {
        if (!my.works(s)) return;
        const int segments = s.segments.by;
        Walk w = {my,
            sums() + ((my.turn * segments + my.segment) * rows() + lane.g) * TILE_N + 2 * lane.t,
            piece0 + (first + my.turn) * s.pieces, s.abreast * s.pieces, s.abreast * segments * rows() * TILE_N,
            inputs.all() + lane.g * inputs.stride(s) + 16 * lane.t + my.segment * 2 * UNIT};
        load_rows(w.x, w.input);
        const bool alike = ONLY != ANY || is_of_one_type(layer, stage);
        for (int t = my.turn; t < tiles;) {
            int type = ONLY != ANY ? ONLY : place(layer, stage, first + t).part->ty;
            t = any_tiles<ONLY>(type, s, w, t, alike ? tiles : t + 1);
        }
    }

    // ---- outputs ----

    // Of the vector that a stage tells.
    DEVICE int told_columns(int stage) const {
        return stage == QKV ? (a.rope.heads + 2 * a.rope.kv_heads) * a.rope.head_dim
             : stage == GATE_UP ? a.n_ff : a.n_embd;
    }

    // Output tile `t` of a stage (of GATE_UP: pair).
    template <int STAGE> DEVICE Output aim(const Shape& s, int layer, int t) const {
        constexpr int PAIR = STAGE == GATE_UP ? 2 : 1;
        Output o = {-1};
        if (row >= rows() || t * PAIR >= s.tiles) return o;
        Place at = place(layer, STAGE, t * PAIR);
        int n = at.tile * TILE_N + column;
        if (n >= at.part->rows) return o;
        o.n = STAGE == QKV ? at.part->column + n : n;
        o.at = row * row_words(told_columns(STAGE)) + word_of(o.n);
        o.has_bias = at.part->bias;
        if (o.has_bias) o.bias = at.part->bias[n];
        if (PAIR == 2) {
            o.has_up_bias = at.part[1].bias;
            if (o.has_up_bias) o.up_bias = at.part[1].bias[n];
        }
        if (STAGE == OUTPUT || STAGE == DOWN) {
            o.old = a.exchange.heard(a.exchange.x) + o.at;
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
            a.exchange.tell_all(a.exchange.qkv + o.at, v, number);
        } else if (STAGE == GATE_UP) {
            v = silu_mul(v, scaled(total_of(s, 2 * t + 1), o.has_up_bias, o.up_bias));
            a.exchange.tell_all(a.exchange.ff + o.at, v, number);
        } else {
            // x was last written by DOWN of the layer before, or the embedding (for OUTPUT), or by
            // OUTPUT of this layer (for DOWN): its number is so many exchanges older.
            constexpr int AGO = STAGE == OUTPUT ? BY_OUTPUT : BY_DOWN - BY_OUTPUT;
            while (number_in(o.old_word) != number - AGO) o.old_word = word_at(o.old);
            a.exchange.tell_all(a.exchange.x + o.at, __fadd_rn(value_in(o.old_word), v), number);
        }
    }

    // ---- stages ----

    template <int ONLY, int STAGE> DEVICE void stage(int layer, const Input& in, uint32_t number) {
        const Shape s = shapes[STAGE];
        if (s.tiles == 0) return;
        post_block(a, in.number);
        constexpr int PAIR_LOG = STAGE == GATE_UP ? 1 : 0;
        int t = tile0;
        const Share my(s, warp);
        Output o = aim<STAGE>(s, layer, t);
        inputs.template take<STAGE, STAGE == DOWN ? FF_CHUNKS : KEPT_CHUNKS<ALONE>>(s, my, in);
#pragma unroll 1
        for (int first = 0; first < s.tiles; first += s.group) {
            int tiles = min(s.group, s.tiles - first);
            multiply_group<ONLY>(s, my, layer, STAGE, first, tiles);
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
        post_end(a);
    }
};
