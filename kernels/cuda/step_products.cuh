// The products of a decode step: the work of one block in one stage (table in decode_step.cu).
//
// The inputs are in shared memory (step_inputs.cuh). Segments of tiles are dealt to the consumer warps in
// turn, two tiles at a time (matmul.cuh's order). Each warp writes its sums to shared memory, and one thread
// adds the sums of an output, applies the epilogue and publishes it.
#pragma once
#include "argmax.cuh"
#include "glu.cuh"
#include "step_inputs.cuh"

// `body` for the type that a matrix has, of these types. The choice stands in front of all bodies: one between each two of them
// would be fetched from afar (bench/results/cuda.md).
template <int T> struct OfType {
    static constexpr int TYPE = T;
};
template <int T, int... OTHERS, typename Body> DEVICE void for_type(int type, const Body& body) {
    if constexpr (sizeof...(OTHERS) > 0)
        if (type != T) return for_type<OTHERS...>(type, body);
    body(OfType<T>());
}

// An output of a thread, with everything that is known of it before its sum is there.
struct Output {
    int n;        // of the whole stage; negative: none
    uint32_t at;  // its word in the vector that the stage publishes
    bool has_bias, has_up_bias;
    float bias, up_bias;
    float up;  // power of two of ff
    const Word* residual;  // of x
    Word residual_word;    // as it was read last
};

// FF_CHUNKS: of ff, the widest vector, that a warp takes at a time.
template <bool ALONE, int FF_CHUNKS> struct Products : Plan {
    static constexpr int ATTENTION_CHUNKS = 4;

    Inputs<ALONE> inputs;
    Ring ring;
    Lane lane;
    int warp;

    int piece0;  // of the next group
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

    // A unit of a pair of tiles and of the input, in registers. Weights are the left operand, the first tile
    // its rows 0 to 7 and the other 8 to 15; rows of the input are columns of the right one, where columns
    // past the last row hold anything.
    template <int T> struct PairUnit {
        static constexpr int GROUP = Weights<T>::GROUP;
        // Weights of two planes are too many, and where rows take registers those of whole units of large
        // types: they are loaded on the way.
        static constexpr bool IN_REGISTERS = Weights<T>::PLANES == 1 && (ALONE || GROUP == CHUNKS);
        Shared at[2];
        Weights<T> w[2][IN_REGISTERS ? CHUNKS / GROUP : 1];
        uint4 x[CHUNKS];

        DEVICE void load_group(int to, int group, const Lane& lane) {
#pragma unroll
            for (int n = 0; n < 2; n++) w[n][to].template load<false>(at[n], lane, group);
        }
        DEVICE void load(Shared one, Shared other, Shared input, const Lane& lane) {
            at[0] = one;
            at[1] = other;
            if (IN_REGISTERS)
#pragma unroll
                for (int i = 0; i < CHUNKS / GROUP; i++) load_group(i, i, lane);
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) x[c] = load16<false>(input + 64 * c);
        }
        // In the order of `multiply` in weights.cuh.
        DEVICE void multiply(float (&d)[4], const Lane& lane) {
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                if (!IN_REGISTERS && c % GROUP == 0) load_group(0, c / GROUP, lane);
#pragma unroll
                for (int plane = 0; plane < Weights<T>::PLANES; plane++) {
                    uint32_t a[2][4];
#pragma unroll
                    for (int n = 0; n < 2; n++) w[n][IN_REGISTERS ? c / GROUP : 0].fragment(c % GROUP, plane, a[n]);
                    mma(d, a[0][0], a[1][0], a[0][1], a[1][1], x[c].x, x[c].y);
                    mma(d, a[0][2], a[1][2], a[0][3], a[1][3], x[c].z, x[c].w);
                }
            }
        }
    };

    // Pairs of one type that a warp multiplies in turn.
    struct Pairs {
        int piece, step;  // the first piece of the next pair, and from one pair to the next
        int count;
        bool last_has_other;  // whether the last of them has two tiles
        float *to;            // where the sum of the next pair goes
        int to_step, to_other;
    };

    // A slot is given back when its unit is in registers, and the next one waited for before that unit is
    // multiplied: so a warp holds no slot while it waits, and what it does for a slot lies beside products.
    template <int T> DEVICE void multiply_pairs(const StageShape& s, const WarpWork& my, Pairs pairs) {
        const int units = s.units.by, segments = s.segments.by, piece_units = s.piece.by;
        const Shared input = inputs.at + (lane.g < rows() ? lane.g : 0) * inputs.stride(s) + 16 * lane.t;
        const Shared weights = ring.memory;
        Lane at_lane = lane;
        Ring ring = this->ring;
        if (ALONE) {
            at_lane.id = kept(lane.id), at_lane.g = kept(lane.g), at_lane.t = kept(lane.t);
            ring.slots.by = kept(ring.slots.by), ring.slot_bytes = kept(ring.slot_bytes);
        }
        int u = my.segment, skipped = s.piece.of(u);
        Slot slot = ring.slot_of(pairs.piece + skipped);
        ring.wait(slot, pairs.piece + skipped, issued);
        float d[4] = {};
#pragma unroll 1
        for (;;) {
            const int at = u - skipped * piece_units;
            const bool has_other = pairs.count > 1 || pairs.last_has_other;
            const Shared one = weights + slot.at + at * unit_bytes(T);
            PairUnit<T> unit;
            unit.load(one, has_other ? one + piece_units * unit_bytes(T) : one, input + u * 2 * UNIT, at_lane);
            u += segments;
            const bool ends = u >= units;
            if (ends) u = my.segment, pairs.piece += pairs.step, pairs.count--;
            if (!PairUnit<T>::IN_REGISTERS) unit.multiply(d, at_lane);
            const Slot done = slot;
            skipped = s.piece.of(u);
            slot = ring.slot_of(pairs.piece + skipped);
            const bool has = ring.has(slot, pairs.piece + skipped, issued) || pairs.count == 0;
            __syncwarp();
            if (at_lane.id == 0) ring.release(done);
            if (!has) ring.wait(slot, pairs.piece + skipped, issued);
            if (PairUnit<T>::IN_REGISTERS) unit.multiply(d, at_lane);
            if (!ends) continue;
#pragma unroll
            for (int i = 0; i < (ALONE ? 1 : 2); i++) {
                if (2 * at_lane.t + i >= rows()) continue;
                float* to = pairs.to + (2 * at_lane.t + i) * TILE_N;
                to[0] = d[i];
                if (has_other) to[pairs.to_other] = d[2 + i];
            }
            if (pairs.count == 0) return;
            pairs.to += pairs.to_step;
#pragma unroll
            for (int i = 0; i < 4; i++) d[i] = 0.0f;
        }
    }

    // The products of `tiles` tiles of the stage, from `first` on, whose first piece is `piece`. Returns the
    // piece behind them.
    template <int... TYPES>
    DEVICE int multiply_group(StageShape s, WarpWork my, int layer, int stage, int type_of_all, int first, int tiles, int piece) {
        if (!ALONE) {
            // Nothing that follows from these is worked out before the inputs are there: registers are short.
            s.units.by = kept(s.units.by), s.segments.by = kept(s.segments.by), s.piece.by = kept(s.piece.by);
            s.pieces = kept(s.pieces), my.segment = kept(my.segment), my.pair = kept(my.pair);
        }
        const int tile_sums = s.segments.by * rows() * TILE_N, turns = s.pairs_per_pass.by;
        float* to = sums() + my.segment * rows() * TILE_N + lane.g;
        const bool one_type = type_of_all != MIXED;
        // All pairs of one type at once, otherwise pair by pair.
        int turn = 0;
#pragma unroll 1
        for (int t = 0; t < tiles;) {
            int type = one_type ? type_of_all : place(layer, stage, first + t).part->ty;
            Pairs mine = {piece, 0, turn == my.pair, true, to + t * tile_sums, 0, tile_sums};
            if (one_type) {
                const int pairs = (tiles + 1) / 2, last = pairs - 1 - my.pair, behind = s.pairs_per_pass.of(max(last, 0));
                mine.piece += my.pair * s.pieces;
                mine.step = turns * s.pieces;
                mine.count = my.works(s) && last >= 0 ? behind + 1 : 0;
                mine.last_has_other = last != behind * turns || tiles % 2 == 0;
                mine.to += 2 * my.pair * tile_sums;
                mine.to_step = 2 * turns * tile_sums;
                piece += pairs * s.pieces;
                t = tiles;
            } else {
                mine.last_has_other = t % 2 == 0 && t + 1 < tiles && is_pair(layer, stage, first + t);
                piece += s.pieces;
                t += mine.last_has_other ? 2 : 1;
                if (++turn == turns) turn = 0;
            }
            if (mine.count > 0) for_type<TYPES...>(type, [&](auto of) { multiply_pairs<decltype(of)::TYPE>(s, my, mine); });
        }
        return piece;
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
        o.at = row * row_words(published_columns(STAGE)) + (STAGE == GATE_UP ? halves_index(o.n) : word_index(o.n));
        if (STAGE == GATE_UP) o.up = layers[layer].ff_up;
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
        constexpr int FEW = MAX_SEGMENTS / 2;
        float v[MAX_SEGMENTS], total = 0.0f;
#pragma unroll
        for (int j = 0; j < MAX_SEGMENTS; j++) v[j] = j < segments ? from[j * rows() * TILE_N] : 0.0f;
#pragma unroll
        for (int j = 0; j < FEW; j++) total = __fadd_rn(total, v[j]);
        if (segments <= FEW) return total;
#pragma unroll
        for (int j = FEW; j < MAX_SEGMENTS; j++) total = __fadd_rn(total, v[j]);
        return total;
    }

    DEVICE float scaled(float total, bool has_bias, float bias) const {
        float v = __fmul_rn(total, load_float(inputs.scale_at(row)));
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
            v = glu(SILU, v, scaled(total_of(s, 2 * t + 1), o.has_up_bias, o.up_bias));
            a.exchange.publish_halves_to_replicas(a.exchange.ff + o.at, v, o.up, tag);
        } else {
            // The tag of x is so many exchanges older than the stage's own. x was last written by DOWN of
            // the layer before or by the embedding (for OUTPUT), or by OUTPUT of this layer (for DOWN).
            constexpr int X_AGE = STAGE == OUTPUT ? OUTPUT_TAG : DOWN_TAG - OUTPUT_TAG;
            while (tag_in(o.residual_word) != tag - X_AGE) o.residual_word = load_word(o.residual);
            a.exchange.publish_to_replicas(a.exchange.x + o.at, residual_sum(value_in(o.residual_word), v), tag);
        }
    }

    // ---- stages ----

    template <int STAGE, int... TYPES> DEVICE void stage(int layer, const Input& in, uint32_t tag) {
        const StageShape s = shapes[STAGE];
        if (s.tiles == 0) return;
        post_block(a, in.tag);
        constexpr int PAIR_LOG = STAGE == GATE_UP ? 1 : 0;
        int t = tile0;
        const WarpWork my(s, warp);
        Output o = output_at<STAGE>(s, layer, t);
        constexpr bool ONE = sizeof...(TYPES) == 1;
        inputs.template prepare<STAGE, STAGE == DOWN ? FF_CHUNKS : ATTENTION_CHUNKS>(s, my, in);
        const int type = ONE ? 0 : type_of(layer, STAGE);
#pragma unroll 1
        for (int first = 0; first < s.tiles; first += s.group) {
            int tiles = min(s.group, s.tiles - first);
            piece0 = multiply_group<TYPES...>(s, my, layer, STAGE, type, first, tiles, piece0);
            sync_consumers();
#pragma unroll 1
            while (t < (first + tiles) >> PAIR_LOG) {
                if (o.n >= 0) epilogue<STAGE>(s, t - (first >> PAIR_LOG), tag, o);
                t += tile_step;
                o = output_at<STAGE>(s, layer, t);
            }
            if (first + tiles < s.tiles) sync_consumers();
        }
    }

    // TYPES: of all matrices.
    template <int... TYPES> DEVICE void run() {
        const Exchange& e = a.exchange;
        const int attn = a.rope.heads * a.rope.head_dim;
        uint32_t before = a.first_tag;  // tag of the exchange in front of the layer
#pragma unroll 1
        for (int layer = 0; layer < a.n_layers; layer++, before += EXCHANGES) {
            const StepLayer& l = layers[layer];
            stage<QKV, TYPES...>(layer, {e.x, l.attn_norm, before, a.n_embd, 0.0f}, before + QKV_TAG);
            stage<OUTPUT, TYPES...>(layer, {e.attn, nullptr, before + ATTENTION_TAG, attn, l.attn_up}, before + OUTPUT_TAG);
            stage<GATE_UP, TYPES...>(layer, {e.x, l.ffn_norm, before + OUTPUT_TAG, a.n_embd, 0.0f}, before + GATE_UP_TAG);
            stage<DOWN, TYPES...>(layer, {e.ff, nullptr, before + GATE_UP_TAG, a.n_ff, l.ff_up}, before + DOWN_TAG);
        }
        stage<HEAD, TYPES...>(a.n_layers - 1, {e.x, a.head_norm, before, a.n_embd, 0.0f}, 0);
        finish();
    }
    // What is left when all products are there: the best logits.
    DEVICE void finish() {
        for (int d = 16; d > 0; d >>= 1) {
            uint64_t other = __shfl_xor_sync(~0u, best, d);
            best = other > best ? other : best;
        }
        if (lane.id == 0 && row < rows()) atomicMax(a.best + row, (unsigned long long)best);
        post_end(a);
    }
};
