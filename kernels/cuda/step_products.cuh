// The products of a decode step: the work of one block in one stage (table in decode_step.cu).
//
// The inputs are in shared memory (step_inputs.cuh). Segments of tiles are dealt to the consumer warps in
// turn (matmul.cuh's order). Each warp writes its sums to shared memory, and one thread adds the sums of
// an output, applies the epilogue and publishes it.
#pragma once
#include "argmax.cuh"
#include "glu.cuh"
#include "step_inputs.cuh"

// An output of a thread, with everything that is known of it before its sum is there.
struct Output {
    int n;        // of the whole stage; negative: none
    uint32_t at;  // its word in the vector that the stage publishes
    bool has_bias, has_up_bias;
    float bias, up_bias;
    const Word* residual;  // of x
    Word residual_word;    // as it was read last
};

// Chunks of a vector that a warp keeps in registers; of ff, the widest, FF_CHUNKS.
template <bool ALONE> constexpr int KEPT_CHUNKS = ALONE ? 2 : 4;

template <bool ALONE, int FF_CHUNKS> struct Products : Plan {
    Inputs<ALONE> inputs;
    Ring ring;
    Lane lane;
    int warp;

    int piece0;  // of the stage
    int issued;  // copies that are known to be in flight or done
    // The outputs of this thread: one row, and of each four tiles a column.
    int row, column, tile0, tile_step;
    uint64_t best;

    DEVICE Products(const Plan& p, uint8_t* smem, RowReduction& m, const Ring& r)
        : Plan(p), inputs(p.a, smem, m), ring(r), warp(threadIdx.x / 32), piece0(0), issued(0), best(0) {
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
    DEVICE void multiply_unit(float (&d)[N][4], const Fragments& x, const uint8_t* const (&slot)[N]) const {
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

    // A warp's way through tiles: the place of the next tile's sum, its first piece, its input.
    struct TileWalk {
        const WarpWork& my;
        float* to;
        int piece, step, to_step;
        const uint8_t* input;
        Fragments x;
    };
    DEVICE void store_sum(TileWalk& w, const float (&d)[4]) const {
        if (lane.g < rows()) *reinterpret_cast<float2*>(w.to) = make_float2(d[0], d[1]);
        w.to += w.to_step;
        w.piece += w.step;
    }
    // Arrivals at a slot's `empty` barrier when unit `at` of a piece is done with; a piece makes PIECE_UNITS
    // in all.
    DEVICE static int releases(const StageShape& s, int u, int at) {
        return at + 1 == s.piece.by || u + 1 == s.units.by ? PIECE_UNITS - at : 1;
    }

    // One tile of type T: the units of the segment in turn.
    template <int T> DEVICE void multiply_tile(const StageShape& s, TileWalk& w) {
        float d[1][4] = {};
        int u = w.my.segment;
        for (;;) {
            int skipped = s.piece.of(u), at = u - skipped * s.piece.by;
            Slot slot = ring.slot_of(w.piece + skipped);
            ring.wait(slot, w.piece + skipped, issued);
            multiply_unit<T>(d, w.x, {ring.smem + slot.at + at * unit_bytes(T)});
            __syncwarp();
            if (lane.id == 0) ring.release(slot, releases(s, u, at));
            if (s.is_short) break;  // its input stays in registers
            u += s.segments.by;
            bool last = u >= s.units.by;
            load_rows(w.x, last ? w.input : w.input + (u - w.my.segment) * 2 * UNIT);
            if (last) break;
        }
        store_sum(w, d[0]);
    }

    // Tiles of type T; returns the first that is left.
    template <int T> DEVICE int multiply_tiles(const StageShape& s, TileWalk& w, int t, int end) {
        // Two tiles at a time, so that the products of one run while those of the other wait for each
        // other; but only where the ring holds both.
        if (ALONE && s.is_short && Weights<T>::PLANES == 1 && w.step < ring.slots.by) {
            const int u = w.my.segment, skipped = s.piece.of(u), at = u - skipped * s.piece.by;
            const int from = at * unit_bytes(T), units = releases(s, u, at);
#pragma unroll 1
            for (; t + s.tiles_per_pass < end; t += 2 * s.tiles_per_pass) {
                float d[2][4] = {};
                int p = w.piece + skipped;
                Slot one = ring.slot_of(p), other = ring.slot_of(p + w.step);
                ring.wait(one, p, issued);
                ring.wait(other, p + w.step, issued);
                multiply_unit<T>(d, w.x, {ring.smem + one.at + from, ring.smem + other.at + from});
                __syncwarp();
                if (lane.id == 0) {
                    ring.release(one, units);
                    ring.release(other, units);
                }
                store_sum(w, d[0]);
                store_sum(w, d[1]);
            }
        }
#pragma unroll 1
        for (; t < end; t += s.tiles_per_pass) multiply_tile<T>(s, w);
        return t;
    }

    template <int ONLY> DEVICE int multiply_tiles_of(int type, const StageShape& s, TileWalk& w, int t, int end) {
        if (ONLY != ANY) return multiply_tiles<ONLY == ANY ? F16 : ONLY>(s, w, t, end);
        switch (type) {
            case F32: return multiply_tiles<F32>(s, w, t, end);
            case Q8_0: return multiply_tiles<Q8_0>(s, w, t, end);
            case Q4_0: return multiply_tiles<Q4_0>(s, w, t, end);
            case Q4_1: return multiply_tiles<Q4_1>(s, w, t, end);
            case Q5_0: return multiply_tiles<Q5_0>(s, w, t, end);
            case Q5_1: return multiply_tiles<Q5_1>(s, w, t, end);
            case Q4_K: return multiply_tiles<Q4_K>(s, w, t, end);
            case Q5_K: return multiply_tiles<Q5_K>(s, w, t, end);
            case Q6_K: return multiply_tiles<Q6_K>(s, w, t, end);
            default: return multiply_tiles<F16>(s, w, t, end);
        }
    }

    // The products of `tiles` tiles of the stage, from `first` on.
    template <int ONLY>
    DEVICE void multiply_group(const StageShape& s, const WarpWork& my, int layer, int stage, int first, int tiles) {
        if (!my.works(s)) return;
        const int segments = s.segments.by;
        TileWalk w = {my,
            sums() + ((my.tile_in_pass * segments + my.segment) * rows() + lane.g) * TILE_N + 2 * lane.t,
            piece0 + (first + my.tile_in_pass) * s.pieces, s.tiles_per_pass * s.pieces, s.tiles_per_pass * segments * rows() * TILE_N,
            inputs.all() + lane.g * inputs.stride(s) + 16 * lane.t + my.segment * 2 * UNIT};
        load_rows(w.x, w.input);
        const bool one_type = ONLY != ANY || is_of_one_type(layer, stage);
        for (int t = my.tile_in_pass; t < tiles;) {
            int type = ONLY != ANY ? ONLY : place(layer, stage, first + t).part->ty;
            t = multiply_tiles_of<ONLY>(type, s, w, t, one_type ? tiles : t + 1);
        }
    }

    // ---- outputs ----

    // Columns of the vector that a stage publishes.
    DEVICE int published_columns(int stage) const {
        return stage == QKV ? (a.rope.heads + 2 * a.rope.kv_heads) * a.rope.head_dim
             : stage == GATE_UP ? a.n_ff : a.n_embd;
    }

    // This thread's output in tile `t` of a stage; with GATE_UP in pair `t`.
    template <int STAGE> DEVICE Output output_at(const StageShape& s, int layer, int t) const {
        constexpr int PAIR = STAGE == GATE_UP ? 2 : 1;
        Output o = {-1};
        if (row >= rows() || t * PAIR >= s.tiles) return o;
        StageTile at = place(layer, STAGE, t * PAIR);
        int n = at.tile * TILE_N + column;
        if (n >= at.part->rows) return o;
        o.n = STAGE == QKV ? at.part->column + n : n;
        o.at = row * row_words(published_columns(STAGE)) + word_index(o.n);
        o.has_bias = at.part->bias;
        if (o.has_bias) o.bias = at.part->bias[n];
        if (PAIR == 2) {
            o.has_up_bias = at.part[1].bias;
            if (o.has_up_bias) o.up_bias = at.part[1].bias[n];
        }
        if (STAGE == OUTPUT || STAGE == DOWN) {
            o.residual = a.exchange.replica(a.exchange.x) + o.at;
            o.residual_word = load_word(o.residual);
        }
        return o;
    }

    DEVICE float total_of(const StageShape& s, int t) const {
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
        float v = __fmul_rn(total, inputs.reduction.scales[row]);
        return has_bias ? __fadd_rn(v, bias) : v;
    }

    // An output's end: bias, residual or gated linear unit, and its publication. `t` counts tiles of the
    // group; `tag` is the stage's own.
    template <int STAGE> DEVICE void epilogue(const StageShape& s, int t, uint32_t tag, Output& o) {
        float v = scaled(total_of(s, STAGE == GATE_UP ? 2 * t : t), o.has_bias, o.bias);
        if (STAGE == HEAD) {
            a.logits[int64_t(row) * a.vocab + o.n] = v;
            if (!isfinite(v)) atomicOr(a.broken + row, 1u);
            uint64_t r = rank(v, o.n);
            best = r > best ? r : best;
        } else if (STAGE == QKV) {
            a.exchange.publish_to_replicas(a.exchange.qkv + o.at, v, tag);
        } else if (STAGE == GATE_UP) {
            v = glu(a.activation, v, scaled(total_of(s, 2 * t + 1), o.has_up_bias, o.up_bias));
            a.exchange.publish_to_replicas(a.exchange.ff + o.at, v, tag);
        } else {
            // The tag of x is so many exchanges older than the stage's own. x was last written by DOWN of
            // the layer before or by the embedding (for OUTPUT), or by OUTPUT of this layer (for DOWN).
            constexpr int X_AGE = STAGE == OUTPUT ? OUTPUT_TAG : DOWN_TAG - OUTPUT_TAG;
            while (tag_in(o.residual_word) != tag - X_AGE) o.residual_word = load_word(o.residual);
            a.exchange.publish_to_replicas(a.exchange.x + o.at, residual_sum(value_in(o.residual_word), v), tag);
        }
    }

    // ---- stages ----

    template <int ONLY, int STAGE> DEVICE void stage(int layer, const Input& in, uint32_t tag) {
        const StageShape s = shapes[STAGE];
        if (s.tiles == 0) return;
        post_block(a, in.tag);
        constexpr int PAIR_LOG = STAGE == GATE_UP ? 1 : 0;
        int t = tile0;
        const WarpWork my(s, warp);
        Output o = output_at<STAGE>(s, layer, t);
        inputs.template prepare<STAGE, STAGE == DOWN ? FF_CHUNKS : KEPT_CHUNKS<ALONE>>(s, my, in);
#pragma unroll 1
        for (int first = 0; first < s.tiles; first += s.group) {
            int tiles = min(s.group, s.tiles - first);
            multiply_group<ONLY>(s, my, layer, STAGE, first, tiles);
            sync_consumers();
#pragma unroll 1
            while (t < (first + tiles) >> PAIR_LOG) {
                if (o.n >= 0) epilogue<STAGE>(s, t - (first >> PAIR_LOG), tag, o);
                t += tile_step;
                o = output_at<STAGE>(s, layer, t);
            }
            if (first + tiles < s.tiles) sync_consumers();
        }
        piece0 += s.tiles * s.pieces;
    }

    template <int ONLY> DEVICE void run() {
        const Exchange& e = a.exchange;
        const int attn = a.rope.heads * a.rope.head_dim;
        uint32_t before = a.first_tag;  // tag of the exchange in front of the layer
#pragma unroll 1
        for (int layer = 0; layer < a.n_layers; layer++, before += EXCHANGES) {
            const StepLayer& l = layers[layer];
            stage<ONLY, QKV>(layer, {e.x, l.attn_norm, before, a.n_embd}, before + QKV_TAG);
            stage<ONLY, OUTPUT>(layer, {e.attn, nullptr, before + ATTENTION_TAG, attn}, before + OUTPUT_TAG);
            stage<ONLY, GATE_UP>(layer, {e.x, l.ffn_norm, before + OUTPUT_TAG, a.n_embd}, before + GATE_UP_TAG);
            stage<ONLY, DOWN>(layer, {e.ff, nullptr, before + GATE_UP_TAG, a.n_ff}, before + DOWN_TAG);
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
