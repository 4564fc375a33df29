// The products of a decode step of one row with experts: what stands for those of decode_step.cuh.
//
//   stage      reads                              writes                         tag of what it writes
//   ROUTER     x (t + OUTPUT_TAG)                 logits [experts]               t + OUTPUT_TAG
//   choice     logits (t + OUTPUT_TAG)            the choices, in every block's
//                                                 own shared memory
//   GATE_UP    x (t + OUTPUT_TAG)                 ff     [used][n_ff]            t + GATE_UP_TAG
//   DOWN       ff (t + GATE_UP_TAG),              x      [n_embd]                t + DOWN_TAG
//              x (t + OUTPUT_TAG) as the residual
//
// The router's tiles belong to some blocks; every block that multiplies by experts polls all logits, and a warp of it
// chooses. The producer has fetched what is needed without the choice, waits for it, and fetches the tiles of the chosen
// experts. Tiles of GATE_UP are those of all chosen experts, one expert behind the other; a tile of
// DOWN is one of every chosen expert, whose results are added in the order of the choice (combine.cuh).
//
// A block overwrites logits and ff of the layer before only when it has x, which depends on all blocks that have read
// them: those that have no tile of experts read neither.
//
// A layer has six stages here, and what a block executes for one layer must stay in the instruction caches until the
// next (bench/results/cuda.md). So all stages are turns of one loop, with one copy of what polls, prepares, multiplies
// and adds; in decode_step.cuh each is compiled by itself.
//
// Bits are those of route_few.cu and experts_row.cu.
#pragma once
#include "choice.cuh"
#include "combine.cuh"
#include "step_products.cuh"

constexpr int MAX_USED = 16;        // experts of a row
constexpr int LANE_EXPERTS = 4;     // of a router, a lane
constexpr int LANE_UNITS = 4;       // of a vector that is prepared, a warp
constexpr int MAX_INPUT_UNITS = 64; // of a vector that is prepared, or of those of all chosen experts
constexpr int TOTAL_SEGMENTS = 4;   // that are added at a time
static_assert(LANE_UNITS * STEP_WARPS == MAX_INPUT_UNITS && MAX_INPUT_UNITS <= MAX_UNITS);

constexpr int ROUTER = STAGES;  // a stage behind those of step_plan.cuh

DEVICE constexpr bool is_normalized(int stage) { return stage == QKV || stage == ROUTER || stage == HEAD; }

// What a block knows of a layer's choice, and of the experts' inputs.
struct Chosen {
    Word ready;  // barrier: the choice of a layer is there
    Choice choices[MAX_USED];
    float largest[MAX_INPUT_UNITS];
    // Of each row that is prepared 2^e and 2^-e, and what a norm multiplies by.
    float scales[MAX_USED], down[MAX_USED], inverse;
    StageShape router;
    Divisor expert_tiles;  // of gate
    Part head;             // beside other parts, so that all are read alike

    DEVICE void init(const StepArgs& a, int block, int blocks) {
        if (threadIdx.x != 0) return;
        barrier_init(shared_address(&ready), 1);
        const int tiles = (a.mixture.experts + TILE_N - 1) / TILE_N, units = (a.n_embd + UNIT - 1) / UNIT;
        router.first = block;
        router.tiles = block < tiles ? (tiles - block + blocks - 1) / blocks : 0;
        router.pieces = units;
        router.piece = Divisor(1);
        router.units = Divisor(units);
        router.segments = Divisor(segments_of(units));
        router.group = max(2, a.shared.sums_bytes / (router.segments.by * TILE_N * 4) & ~1);
        expert_tiles = Divisor(a.layers[0].parts[4].tiles);
        head = a.head;
    }
};

// The stages of a step in order.
struct Turn {
    int layer, stage;

    DEVICE void next(int layers) {
        switch (stage) {
            case OUTPUT: stage = ROUTER; return;
            case ROUTER: stage = GATE_UP; return;
            case DOWN: stage = ++layer == layers ? HEAD : QKV; return;
            default: stage++;
        }
    }
    DEVICE const StageShape& shape(const Plan& plan, const Chosen& chosen) const {
        return stage == ROUTER ? chosen.router : plan.shapes[stage];
    }
    // Tile `n` of the stage in the model. GATE_UP and DOWN have those of the first expert.
    DEVICE StageTile place(const Plan& plan, const Chosen& chosen, int n) const {
        if (stage == ROUTER) return {plan.a.mixture.routers + layer, n};
        if (stage == HEAD) return {&chosen.head, n};
        const Part* part = plan.layers[layer].parts;
        if (stage != QKV) return {part + (stage == OUTPUT ? 3 : stage == GATE_UP ? 4 : 6), n};
        while (n >= part->tiles) n -= part++->tiles;
        return {part, n};
    }
};

// Blocks without a tile of experts need no choice.
DEVICE bool has_experts(const StageShape* shapes) { return shapes[GATE_UP].tiles > 0 || shapes[DOWN].tiles > 0; }

struct ExpertsProducer : Producer {
    Chosen& chosen;

    DEVICE ExpertsProducer(const Plan& p, const Ring& ring, Chosen& c) : Producer(p, ring), chosen(c) {}

    // The pairs of tiles of a stage in the order of `multiply_runs`. Tile `i` of those of all chosen experts is tile `i`
    // modulo `expert_tiles` of expert number `i / expert_tiles`.
    DEVICE void run() {
        const bool waits = has_experts(plan.shapes);
#pragma unroll 1
        for (Turn turn = {0, QKV};; turn.next(plan.a.n_layers)) {
            const StageShape& s = turn.shape(plan, chosen);
            if (turn.stage == GATE_UP && waits) barrier_wait(shared_address(&chosen.ready), turn.layer & 1);
            const int experts = turn.stage == DOWN ? plan.a.mixture.used : 1;
            int t = 0, c = 0;
#pragma unroll 1
            while (t < s.tiles) {
                const int i = s.first + (turn.stage == GATE_UP ? t / 2 : t) * plan.blocks();
                const StageTile at = turn.place(plan, chosen, i);
                const Matrix m = matrix(*at.part, s);
                const Part* other = at.part;
                int n = at.tile, other_n = n + plan.blocks();
                bool both = t + 1 < s.tiles;
                if (turn.stage == GATE_UP) {
                    const int of = chosen.expert_tiles.of(i);
                    other_n = n = i + (chosen.choices[of].expert - of) * int(chosen.expert_tiles.by);
                    other++;
                } else if (turn.stage == DOWN) {
                    const int before = chosen.choices[c].expert * at.part->tiles;
                    n += before, other_n += before;
                } else if (turn.stage == QKV && both) {
                    const StageTile behind = turn.place(plan, chosen, i + plan.blocks());
                    other = behind.part, other_n = behind.tile;
                    both = behind.part->ty == at.part->ty;
                }
                both &= t % 2 == 0;
                pair<false>(m, tile(m, n), both ? other->weight + other_n * m.tile_bytes : nullptr, s.pieces);
                if (++c < experts) continue;
                c = 0;
                t += turn.stage == DOWN || both ? 2 : 1;
            }
            if (turn.stage == HEAD) return;
        }
    }
};

// TYPES: of all matrices.
template <int... TYPES> struct ExpertsProducts : Products<true, 1> {
    using Base = Products<true, 1>;
    Chosen& chosen;

    DEVICE ExpertsProducts(const Plan& p, uint8_t* smem, RowReduction& m, const Ring& r, Chosen& c) : Base(p, smem, m, r), chosen(c) {}

    // ---- inputs ----

    // What a stage multiplies by, as F16. A warp has every so-many-th unit of 128 columns, and keeps it in registers from
    // its arrival on. Rows through a norm and rows of experts have the power of two of their largest value: see
    // step_inputs.cuh. Each of experts' rows has `units` units.
    DEVICE void prepare(const Turn& turn, const StageShape& s, const Input& in) {
        const bool normalized = is_normalized(turn.stage), taken = turn.stage == OUTPUT;
        const int units = s.units.by, rows = turn.stage == DOWN ? a.mixture.used : 1, all = rows * units;
        const auto row_of = [&](int i) { return rows == 1 ? 0 : s.units.of(i); };
        const auto column_of = [&](int i) { return (i - row_of(i) * units) * UNIT + 4 * lane.id; };
        const auto is_mine = [&](int i) { return i < all && column_of(i) < in.cols; };
        if (normalized) {
#pragma unroll 1
            for (int i = warp; i < all; i += STEP_WARPS)
                if (is_mine(i))
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                        ::"r"(shared_address(inputs.norm() + column_of(i))), "l"(in.weight + column_of(i)) : "memory");
        }
        // The input and the scales of the stage before have been read.
        if (taken) sync_consumers();
        Four y[LANE_UNITS];
        const Word* from = a.exchange.replica(in.from) + 2 * lane.id;
        bool pending;
        do {
            pending = false;
#pragma unroll
            for (int j = 0; j < LANE_UNITS; j++) {
                const int i = warp + j * STEP_WARPS;
                y[j] = {{0, 0, 0, 0}};
                if (is_mine(i)) pending |= !poll_four(y[j], from + i * UNIT, in.tag);
            }
        } while (__any_sync(~0u, pending));
        float over = 1.0f;
        if (taken) {
            if (threadIdx.x == 0) chosen.scales[0] = inverse_power(in.up);
        } else {
            if (normalized) {
                asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
                for (int j = 0; j < LANE_UNITS; j++) {
                    const int i = warp + j * STEP_WARPS;
                    if (i >= all) continue;
                    const float sum = warp_sum(sum_of_squares(y[j]));
                    if (lane.id == 0) store_float(inputs.squares_at(0, i), sum);
                    const Four weight = four(inputs.norm(), column_of(i), in.cols);
#pragma unroll
                    for (int k = 0; k < 4; k++) y[j].v[k] = __fmul_rn(y[j].v[k], weight.v[k]);
                }
            }
#pragma unroll
            for (int j = 0; j < LANE_UNITS; j++) {
                const int i = warp + j * STEP_WARPS;
                const uint32_t max = __reduce_max_sync(~0u, __float_as_uint(fmaxf(0.0f, largest(y[j]))));
                if (lane.id == 0 && i < all) chosen.largest[i] = __uint_as_float(max);
            }
            sync_consumers();
            if (warp < rows) {
                float max = 0.0f;
#pragma unroll 1
                for (int u = lane.id; u < units; u += 32) max = fmaxf(max, chosen.largest[warp * units + u]);
                max = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(max)));
                if (normalized) over = inputs.inverse_of(s, 0);
                const int e = row_exponent(__fmul_rn(max, over));
                chosen.scales[warp] = power_of_two(e);
                chosen.down[warp] = power_of_two(-e);
                if (warp == 0) chosen.inverse = over;
            }
            sync_consumers();
            over = chosen.inverse;
        }
#pragma unroll
        for (int j = 0; j < LANE_UNITS; j++) {
            const int i = warp + j * STEP_WARPS;
            if (i >= all) continue;
            const float down = taken ? in.up : chosen.down[row_of(i)];
            float v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) v[k] = __fmul_rn(__fmul_rn(y[j].v[k], over), down);
            *reinterpret_cast<uint2*>(inputs.all() + i * 2 * UNIT + 8 * lane.id) = make_uint2(pack(v[0], v[1]), pack(v[2], v[3]));
        }
        // A warp multiplies what it has prepared where there is a segment for each.
        if (s.segments.by == STEP_WARPS) __syncwarp();
        else sync_consumers();
    }

    // ---- products ----

    // Pairs of tiles of one type, whose segments are dealt to the warps one by one. Input of pair i is `input_step` bytes
    // behind that of the one before.
    struct Items {
        int piece;  // of the first pair
        int pairs, both;  // the first of them have two tiles
        int input_step;
        float* to;  // sums of the first tile
    };

    // As `multiply_pairs`, but for the order in which a warp takes what is its own.
    template <int T> DEVICE void multiply_items(const StageShape& s, const Items& items) {
        const int units = s.units.by, segments = s.segments.by, piece_units = s.piece.by, count = items.pairs * segments;
        const Shared input = inputs.at + 16 * lane.t, weights = ring.memory;
        const int arrivals = a.shared.piece_units;
        int i = warp;
        if (i >= count) return;
        int pair = s.segments.of(i), segment = i - pair * segments, u = segment;
        int skipped = s.piece.of(u), piece = items.piece + pair * s.pieces;
        Slot slot = ring.slot_of(piece + skipped);
        ring.wait(slot, piece + skipped, issued);
        float d[4] = {};
#pragma unroll 1
        for (;;) {
            const int at = u - skipped * piece_units;
            const bool has_other = pair < items.both;
            const Shared one = weights + slot.at + at * unit_bytes(T);
            PairUnit<T> unit;
            unit.load(one, has_other ? one + piece_units * unit_bytes(T) : one, input + pair * items.input_step + u * 2 * UNIT, lane);
            const bool last = at + 1 == piece_units || u + 1 == units;
            if (!PairUnit<T>::IN_REGISTERS) unit.multiply(d, lane);
            __syncwarp();
            if (lane.id == 0) ring.release(slot, last ? arrivals - at : 1);
            u += segments;
            const bool ends = u >= units;
            float* to = items.to + (2 * pair * segments + segment) * TILE_N + lane.g;
            if (ends) {
                i += STEP_WARPS;
                pair = s.segments.of(i);
                u = segment = i - pair * segments;
                piece = items.piece + pair * s.pieces;
            }
            if (i < count) {
                skipped = s.piece.of(u);
                slot = ring.slot_of(piece + skipped);
                ring.wait(slot, piece + skipped, issued);
            }
            if (PairUnit<T>::IN_REGISTERS) unit.multiply(d, lane);
            if (!ends) continue;
            if (lane.t == 0) {
                to[0] = d[0];
                if (has_other) to[segments * TILE_N] = d[2];
            }
            if (i >= count) return;
#pragma unroll
            for (int k = 0; k < 4; k++) d[k] = 0.0f;
        }
    }

    // Tiles of a group, run by run of one type. A pair begins at an even tile: its first tile is alone if its types differ.
    DEVICE void multiply_runs(const Turn& turn, const StageShape& s, int first, int tiles) {
#pragma unroll 1
        for (int t = 0; t < tiles;) {
            const int n = turn.stage == GATE_UP ? 0 : s.first + (first + t) * blocks();
            const int type = turn.stage == ROUTER ? int(F32) : turn.place(*this, chosen, n).part->ty;
            int run = tiles - t;
            if (turn.stage == QKV) {
                run = 1;
                while (t % 2 == 0 && t + run < tiles && turn.place(*this, chosen, n + run * blocks()).part->ty == type) run++;
            }
            Items items = {piece0, (run + 1) / 2, run / 2, 0, sums() + t * int(s.segments.by) * TILE_N};
            if (turn.stage == DOWN) {
                items.both = run == 2 ? a.mixture.used : 0;
                items.pairs = a.mixture.used;
                items.input_step = s.units.by * 2 * UNIT;
            }
            for_type<TYPES...>(type, [&](auto of) { multiply_items<decltype(of)::TYPE>(s, items); });
            piece0 += items.pairs * s.pieces;
            t += run;
        }
    }

    // ---- outputs ----

    DEVICE float total_of(const StageShape& s, int t) const {
        const int segments = s.segments.by;
        const float* from = sums() + t * segments * TILE_N + column;
        float total = 0.0f;
#pragma unroll 1
        for (int first = 0; first < segments; first += TOTAL_SEGMENTS) {
            float v[TOTAL_SEGMENTS];
#pragma unroll
            for (int j = 0; j < TOTAL_SEGMENTS; j++) v[j] = first + j < segments ? from[(first + j) * TILE_N] : 0.0f;
#pragma unroll
            for (int j = 0; j < TOTAL_SEGMENTS; j++) total = __fadd_rn(total, v[j]);
        }
        return total;
    }

    // Outputs of two tiles of all experts, a warp a tile: a lane has a column of every fourth expert, and publishes to one
    // replica.
    DEVICE float added_experts(const StageShape& s) const {
        float sum = 0.0f;
#pragma unroll 1
        for (int first = 0; first < a.mixture.used; first += 4) {
            const int mine = first + lane.id / TILE_N;
            const float v = mine < a.mixture.used ? __fmul_rn(total_of(s, 2 * mine + warp), chosen.scales[mine]) : 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float other = __shfl_sync(~0u, v, j * TILE_N + column);
                if (first + j < a.mixture.used) sum = weighted(sum, chosen.choices[first + j].weight, other);
            }
        }
        return sum;
    }

    DEVICE void end(const Turn& turn, const StageShape& s, int first, const float* bias, Word residual, const Word* at, uint32_t tag) {
        const Exchange& e = a.exchange;
        const bool pairs = turn.stage == GATE_UP, added = turn.stage == DOWN;
        const int mine = added ? warp : tile0;
        int i = s.first + ((pairs ? first / 2 : first) + mine) * blocks(), expert = 0;
        if (pairs) {
            expert = chosen.expert_tiles.of(i);
            i -= expert * chosen.expert_tiles.by;
        }
        const StageTile tile = turn.place(*this, chosen, i);
        const int n = tile.tile * TILE_N + column;
        float v = 0.0f;
        if (added) {
            v = added_experts(s);
        } else {
            float up = 0.0f;
#pragma unroll 1
            for (int j = pairs; j >= 0; j--) {
                up = v;
                v = __fmul_rn(total_of(s, pairs ? 2 * mine + j : mine), chosen.scales[0]);
            }
            if (pairs) v = glu(SILU, v, up);
        }
        if (n >= (turn.stage == ROUTER ? a.mixture.experts : tile.part->rows)) return;
        if (turn.stage == ROUTER ? bias != nullptr : !pairs && !added && (bias = tile.part->bias))
            v = __fadd_rn(v, bias[n]);
        Word* to;
        switch (turn.stage) {
            case HEAD: {
                a.logits[n] = v;
                if (!isfinite(v)) atomicOr(a.broken, 1u);
                const uint64_t r = rank(v, n);
                best = r > best ? r : best;
                return;
            }
            case QKV: to = e.qkv + word_index(tile.part->column + n); break;
            case ROUTER: to = a.mixture.logits + n; break;
            case GATE_UP: to = e.ff + expert * row_words(a.n_ff) + word_index(n); break;
            default:
                to = e.x + word_index(n);
                // x was written last by DOWN of the layer before or by the embedding, or by OUTPUT of this layer.
                const uint32_t written = tag - (added ? DOWN_TAG - OUTPUT_TAG : OUTPUT_TAG);
                while (tag_in(residual) != written) residual = load_word(at);
                v = residual_sum(value_in(residual), v);
        }
        if (added) publish(to + lane.id / TILE_N * e.stride, v, tag);
        else e.publish_to_replicas(to, v, tag);
    }

    // ---- the choice ----

    DEVICE void choose(uint32_t tag) const {
        const Word* from = a.exchange.replica(a.mixture.logits);
        float p[LANE_EXPERTS];
        bool pending;
        do {
            pending = false;
#pragma unroll
            for (int i = 0; i < LANE_EXPERTS; i++) {
                const int n = 32 * i + lane.id;
                p[i] = -INFINITY;
                if (n >= a.mixture.experts) continue;
                const Word word = load_word(from + n);
                pending |= tag_in(word) != tag;
                p[i] = value_in(word);
            }
        } while (__any_sync(~0u, pending));
        choose_experts(p, a.mixture.experts, a.mixture.used, a.mixture.weighing, chosen.choices, lane.id);
        __syncwarp();
        if (lane.id == 0) barrier_arrive(shared_address(&chosen.ready));
    }

    // ---- stages ----

    DEVICE Input input_of(const Turn& turn, uint32_t before) const {
        const Exchange& e = a.exchange;
        const StepLayer& l = layers[turn.layer];
        switch (turn.stage) {
            case QKV: return {e.x, l.attn_norm, before, a.n_embd, 0.0f};
            case OUTPUT: return {e.attn, nullptr, before + ATTENTION_TAG, a.rope.heads * a.rope.head_dim, l.attn_up};
            case DOWN: return {e.ff, nullptr, before + GATE_UP_TAG, a.n_ff, 0.0f};
            case HEAD: return {e.x, a.head_norm, before, a.n_embd, 0.0f};
            default: return {e.x, l.ffn_norm, before + OUTPUT_TAG, a.n_embd, 0.0f};
        }
    }
    DEVICE static uint32_t tag_behind(int stage) {
        return stage == QKV ? QKV_TAG : stage == GATE_UP ? GATE_UP_TAG : stage == DOWN ? DOWN_TAG : OUTPUT_TAG;
    }

    DEVICE void stage(const Turn& turn, uint32_t before) {
        const StageShape s = turn.shape(*this, chosen);
        const uint32_t tag = before + tag_behind(turn.stage);
        // GATE_UP has the input of ROUTER.
        const bool prepares = turn.stage == ROUTER ? s.tiles > 0 || shapes[GATE_UP].tiles > 0 : turn.stage != GATE_UP && s.tiles > 0;
        const float* bias = turn.stage == ROUTER ? a.mixture.routers[turn.layer].bias : nullptr;
        if (prepares) {
            const Input in = input_of(turn, before);
            post_block(a, in.tag);
            prepare(turn, s, in);
        }
        const bool has_residual = turn.stage == OUTPUT || turn.stage == DOWN;
        const int mine = turn.stage == DOWN ? warp : turn.stage == GATE_UP ? 2 * tile0 : tile0;
        // A thread has at most one output of a group.
        const int group = turn.stage == DOWN ? 2 : min(s.group, 4 * STEP_WARPS);
#pragma unroll 1
        for (int first = 0; first < s.tiles; first += group) {
            const int tiles = min(group, s.tiles - first), n = (s.first + (first + mine) * blocks()) * TILE_N + column;
            const Word* at = a.exchange.replica(a.exchange.x) + word_index(min(n, a.n_embd - 1));
            Word residual = 0;
            if (has_residual && mine < tiles) residual = load_word(at);
            multiply_runs(turn, s, first, tiles);
            sync_consumers();
            if (mine < tiles) end(turn, s, first, bias, residual, at, tag);
            // What comes next writes its sums where these are read. Before other stages the warps prepare an input.
            if (first + group < s.tiles || turn.stage == ROUTER) sync_consumers();
        }
        if (turn.stage == ROUTER && warp == STEP_WARPS - 1 && has_experts(shapes)) choose(tag);
    }

    DEVICE void run() {
        uint32_t before = a.first_tag;
#pragma unroll 1
        for (Turn turn = {0, QKV};; turn.next(a.n_layers)) {
            if (turn.stage == HEAD) turn.layer = a.n_layers - 1;
            stage(turn, before);
            if (turn.stage == HEAD) break;
            if (turn.stage == DOWN) before += EXCHANGES;
        }
        finish();
    }
};
