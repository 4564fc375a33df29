// A whole decode step in one launch: up to 8 sequences, one token each.
//
// At this size a step is a chain of some hundred small products, each a microsecond of memory
// time behind a microsecond of waiting. So one block stays on every multiprocessor for the whole
// step, stages are separated by a barrier over the grid, and weights never wait for it: which
// tiles a warp will multiply is known in advance, so every warp keeps a ring of units in shared
// memory filled by bulk copies (cp.async.bulk, completing on an mbarrier), and goes on filling it
// across barriers into the stages and layers to come. What is left exposed is the chain itself:
// per layer five barriers and the short prologues behind them.
//
//   embed | norm, QKV | head norms, RoPE, KV, attention | output | norm, gate and up, silu | down
//         | ... | final norm, logits, argmax
//
// Bits: units, segments and every reduction are those of the other kernels, mostly by calling
// the same functions; a prologue is computed by every block alike. See matmul.cuh, norm.cu.
//
// Owner: tile `i` of a stage belongs to block (i + shift) % blocks; in a block, segments of some
// tiles at a time are dealt to warps in turn, and their sums meet in shared memory.
#define DEVICE_FUNCTIONS_ONLY
#include "attention.cu"
#include "argmax.cu"
#include "embed.cu"
#include "matmul.cuh"
#include "norm.cu"
#include "rope_kv.cu"

// Warps that compute, and one behind them that feeds their rings.
constexpr int STEP_WARPS = 15;
constexpr int STEP_THREADS = 32 * STEP_WARPS;
constexpr int BLOCK_THREADS = STEP_THREADS + 32;
#ifndef WINDOW
// Units of a ring under way at a time. With all of a ring under way, 20 MB of requests stand in
// line before every small read of a prologue, which then takes four times as long; this many still
// keep the memory busy.
#define WINDOW 2
#endif
constexpr int STEP_ROWS = 8;
constexpr int MAX_SLOTS = 16;

enum Stage : int { QKV = 0, OUTPUT = 1, GATE_UP = 2, DOWN = 3, HEAD = 4, STAGES = 5 };

struct StepLayer {
    Part parts[7];  // q, k, v, output, gate, up, down
    const float *attn_norm, *ffn_norm, *q_norm, *k_norm;
};

struct StepArgs {
    const StepLayer* layers;
    EmbedArgs embed;          // x is its output
    RopeArgs rope;            // of layer 0, without norms; the layer's are filled in
    AttentionArgs attention;  // likewise
    Part head;
    const float* head_norm;
    float* ff;       // [rows, n_ff]
    float* logits;   // [rows, vocab]
    unsigned long long* best;  // [rows] rank of the best logit
    uint32_t* broken;          // [rows] not zero where a logit is not finite
    uint32_t* largest;         // [layers][2][8] bits of the largest |value| of attention and ff
    uint32_t* arrived;         // counts barriers up; never reset
    uint32_t arrived_before;   // what it counts when this step begins
    int n_layers, rows, n_embd, n_ff, vocab;
    uint64_t layer_halves;     // of the KV cache
    float eps;
    // Shared memory, in bytes from its start (host: device/cuda/decode_step.rs).
    int slot_bytes, slots, group_bytes, inputs_at, sums_at, scales_at, layers_at, rings_at;
};

// What a stage looks like from one block.
struct Shape {
    int tiles;    // of this block
    int first;    // the first of them; then every `blocks`
    int units, segments, length;
    int group;    // tiles whose sums are kept at a time
    int skip_tiles, skip_segments;  // 16 warps' worth of segments, as tiles and a rest
};

// Among the warps that compute.
DEVICE void sync_computing() { asm volatile("bar.sync 1, %0;" ::"n"(STEP_THREADS) : "memory"); }

DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
DEVICE void barrier_init(uint64_t* bar) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(bar)));
}
DEVICE void bulk_copy(uint8_t* to, const uint8_t* from, int bytes, uint64_t* bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
                 "r"(bytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
DEVICE bool has_come(uint64_t* bar, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done) : "r"(shared_address(bar)), "r"(parity) : "memory");
    return done;
}

DEVICE void wait_full(uint64_t* bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}"
        ::"r"(shared_address(bar)), "r"(parity) : "memory");
}

constexpr int ATTEND = STAGES;  // a stage without weights
constexpr int MAX_UNITS = 64;   // of a row that is normalized
constexpr int ANY = -1;         // types differ between matrices

constexpr int MAX_PAGES = 128;  // of a sequence, each a split (host: MAX_SPLITS)

// What attention asks of a row, read once a step: behind a barrier each of these would be a trip
// to the second-level cache that others wait for.
struct Local {
    Row rows[STEP_ROWS];
    int tables[STEP_ROWS][MAX_PAGES];
    float2 turns[STEP_ROWS][MAX_HEAD / 2];
};

// The best logit that a thread has seen of the row it is at; told when the row changes.
struct Best {
    uint64_t best = 0;
    int row = -1;

    DEVICE void tell(unsigned long long* all) const {
        if (row >= 0) atomicMax(all + row, (unsigned long long)best);
    }
    DEVICE void see(unsigned long long* all, int at, uint64_t rank) {
        if (at != row) {
            tell(all);
            best = 0;
            row = at;
        }
        best = rank > best ? rank : best;
    }
};

// A segment of a tile of a group: what a warp multiplies in one go.
struct Item {
    int tile, segment;

    DEVICE Item(const Shape& s, int warp) : tile(warp / s.segments), segment(warp % s.segments) {}
    // The warp's next one.
    DEVICE void advance(const Shape& s) {
        tile += s.skip_tiles;
        segment += s.skip_segments;
        if (segment >= s.segments) {
            segment -= s.segments;
            tile++;
        }
    }
};

// A place in a ring of slots, and how often it went around.
struct Turn {
    int slot = 0;
    uint32_t parity = 0;

    DEVICE void advance(int slots) {
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// Keeps the largest |v| of the lanes that call together for one row (eight of them do).
DEVICE void keep_largest(uint32_t* largest, float v) {
    unsigned lanes = __match_any_sync(__activemask(), (unsigned long long)largest);
    uint32_t max = __reduce_max_sync(lanes, __float_as_uint(fabsf(v)));
    if ((threadIdx.x & 31) == __ffs(lanes) - 1) atomicMax(largest, max);
}

// One block a row and key-value head: RoPE and the new position's keys and values, attention by
// splits, the merge. Not inlined: its registers would cost the products theirs.
//
// The functions are those of rope_kv.cu and attention.cu; their pointers are moved so that the
// indices they compute fall into shared memory: heads, queries and, while they fit, partial
// results.
template <int HD>
__device__ __noinline__ void attend(const StepArgs& a, const StepLayer& l, Local& local,
                                    uint8_t* room, int layer) {
    int kv_heads = a.rope.kv_heads, group = a.rope.heads / kv_heads, tiles = (group + 15) / 16;
    int warp = threadIdx.x / 32;
    float* heads = reinterpret_cast<float*>(room);
    __half* queries = reinterpret_cast<__half*>(heads + STEP_WARPS * HD);
    float* partials = reinterpret_cast<float*>(queries + group * HD);
    for (int unit = blockIdx.x; unit < a.rows * kv_heads; unit += gridDim.x) {
        int row = unit / kv_heads, kv = unit - row * kv_heads;
        int position = local.rows[row].position, splits = position / SPLIT + 1;
        int64_t first_head = int64_t(row) * a.rope.heads + kv * group;
        RopeArgs rope = a.rope;
        rope.rows = local.rows;
        rope.turns = local.turns[row] - int64_t(position) * (rope.dims / 2);
        rope.q_norm = l.q_norm;
        rope.k_norm = l.k_norm;
        rope.q = queries - first_head * HD;
        rope.kv.layer_offset += layer * a.layer_halves;
        rope.kv.tables = local.tables[row] - local.rows[row].table;
        for (int h = warp; h < group + 2; h += STEP_WARPS) {
            int head = h < group ? kv * group + h : a.rope.heads + (h - group) * kv_heads + kv;
            rope_head(rope, heads + warp * HD, row, head);
        }
        AttentionArgs look = a.attention;
        look.q = rope.q;
        look.kv = rope.kv;
        int bytes = int(reinterpret_cast<uint8_t*>(partials) - room) + group * splits * (HD + 2) * 4;
        if (bytes <= a.scales_at - a.inputs_at) {
            look.splits = splits;
            look.partial = partials - first_head * splits * (HD + 2);
        }
        sync_computing();
        for (int i = warp; i < splits * tiles; i += STEP_WARPS) {
            int s = i / tiles, first = 16 * (i - s * tiles);
            Tile tile = {row, first, min(16, group - first), position, local.rows[row].table};
            attend_split<HD>(look, tile, kv, s);
        }
        sync_computing();
        for (int h = warp; h < group; h += STEP_WARPS) {
            float largest = attend_merge(look, first_head + h, position, HD);
            uint32_t max = __reduce_max_sync(~0u, __float_as_uint(largest));
            if ((threadIdx.x & 31) == 0) atomicMax(a.largest + 2 * layer * STEP_ROWS + row, max);
        }
        sync_computing();
    }
}

// The schedule of a block, the same for copies and for products.
struct Schedule {
    const StepArgs& a;
    const StepLayer* layers;
    const Shape* shapes;

    DEVICE int tiles_in_group(const Shape& s, int group) const {
        return min(s.group, s.tiles - group * s.group);
    }

    // Tile `t` of this block: its part, and where in the part it lies.
    DEVICE const Part& part_of(int layer, int stage, int t, int& tile) const {
        const Shape& s = shapes[stage];
        const Part* parts = layers[layer].parts;
        if (stage == GATE_UP) {
            tile = s.first + (t >> 1) * gridDim.x;
            return parts[4 + (t & 1)];
        }
        tile = s.first + t * gridDim.x;
        if (stage == QKV) {
            int p = 0;
            while (tile >= parts[p].tiles) tile -= parts[p++].tiles;
            return parts[p];
        }
        if (stage == HEAD) return a.head;
        return parts[stage == OUTPUT ? 3 : 6];
    }

};

// Keeps the ring of one warp filled. A lane of the feeding warp is a feeder each.
struct Feeder : Schedule {
    int warp;
    uint8_t* ring;
    uint64_t* full;
    const volatile uint32_t* taken;  // units that the warp is done with

    // Copies asked for, and of those the oldest that may not have come.
    Turn asked, oldest;
    uint32_t count;
    int under_way;

    // Where the next copy comes from.
    int next_layer, next_stage, next_group, next_unit, next_end, next_bytes;
    Item next;
    const uint8_t* next_from;

    // Points the next copy at the first unit of its item, or of the first item there is from
    // there on.
    DEVICE void settle() {
        for (;;) {
            if (next_layer > a.n_layers) return;
            const Shape& s = shapes[next_stage];
            if (next_group * s.group < s.tiles) {
                if (next.tile < tiles_in_group(s, next_group)) break;
                next_group++;
                next = Item(s, warp);
                continue;
            }
            next_group = 0;
            if (next_stage == HEAD || ++next_stage == HEAD) {
                next_layer++;
                if (next_layer < a.n_layers) next_stage = QKV;
            }
            next = Item(shapes[next_stage], warp);
        }
        const Shape& s = shapes[next_stage];
        int tile;
        const Part& p = part_of(min(next_layer, a.n_layers - 1), next_stage,
                                next_group * s.group + next.tile, tile);
        next_bytes = unit_bytes(p.type);
        next_unit = next.segment * s.length;
        next_end = min(next_unit + s.length, s.units);
        next_from = p.weight + (int64_t(tile) * s.units + next_unit) * next_bytes;
    }

    DEVICE bool is_done() const { return next_layer > a.n_layers; }

    // Asks for the next unit when there is room for it and not too much under way.
    DEVICE void poll() {
        if (under_way > 0 && has_come(full + oldest.slot, oldest.parity)) {
            oldest.advance(a.slots);
            under_way--;
        }
        if (under_way == WINDOW || count - *taken == a.slots) return;
        bulk_copy(ring + asked.slot * a.slot_bytes, next_from, next_bytes, full + asked.slot);
        asked.advance(a.slots);
        count++;
        under_way++;
        next_from += next_bytes;
        if (++next_unit == next_end) {
            next.advance(shapes[next_stage]);
            settle();
        }
    }
};

struct Step : Schedule {
    uint8_t* shared;
    Local& local;
    Lane lane;
    int warp;
    uint32_t target;

    // The ring of this warp: where the next unit is taken from.
    uint8_t* ring;
    uint64_t* full;
    volatile uint32_t* done;
    Turn taken;
    uint32_t count;

    // ---- products ----

    template <int T> DEVICE void unit(float (&d)[4], const uint8_t* slot, const uint8_t* input, int stride) {
        constexpr int GROUPS = CHUNKS / Weights<T>::GROUP;
        Weights<T> w[GROUPS];
#pragma unroll
        for (int i = 0; i < GROUPS; i++) w[i].template load<false>(slot, lane, i);
        Rows x[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            x[c].a = x[c].b = make_uint4(0, 0, 0, 0);
            if (lane.g < a.rows)
                x[c].a = *reinterpret_cast<const uint4*>(input + lane.g * stride + 64 * c + 16 * lane.t);
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            multiply<T>(d, x[c], w[c / Weights<T>::GROUP], c % Weights<T>::GROUP);
    }

    // One segment of one tile, from the ring.
    template <int ONLY>
    DEVICE void segment(float (&d)[4], int type, int first, int end, int stride) {
        for (int u = first; u < end; u++) {
            wait_full(full + taken.slot, taken.parity);
            const uint8_t* from = ring + taken.slot * a.slot_bytes;
            const uint8_t* input = inputs() + u * 2 * UNIT;
            if (ONLY != ANY) {
                unit<ONLY == ANY ? F16 : ONLY>(d, from, input, stride);
            } else {
                switch (type) {
                    case F16: unit<F16>(d, from, input, stride); break;
                    case F32: unit<F32>(d, from, input, stride); break;
                    case Q8_0: unit<Q8_0>(d, from, input, stride); break;
                    case Q4_0: unit<Q4_0>(d, from, input, stride); break;
                    case Q4_1: unit<Q4_1>(d, from, input, stride); break;
                    case Q5_0: unit<Q5_0>(d, from, input, stride); break;
                    case Q5_1: unit<Q5_1>(d, from, input, stride); break;
                    case Q4_K: unit<Q4_K>(d, from, input, stride); break;
                    case Q5_K: unit<Q5_K>(d, from, input, stride); break;
                    case Q6_K: unit<Q6_K>(d, from, input, stride); break;
                }
            }
            taken.advance(a.slots);
            count++;
            __syncwarp();
            if (lane.id == 0) *done = count;
        }
    }

    DEVICE uint8_t* inputs() const { return shared + a.inputs_at; }
    DEVICE float* sums() const { return reinterpret_cast<float*>(shared + a.sums_at); }
    DEVICE float* scales() const { return reinterpret_cast<float*>(shared + a.scales_at); }
    DEVICE int stride(int stage) const { return shapes[stage].units * 2 * UNIT + 64; }

    DEVICE float finished(const Part& p, int row, int n, float total) const {
        float v = __fmul_rn(total, scales()[row]);
        return p.bias ? __fadd_rn(v, p.bias[n]) : v;
    }

    // What becomes of an output, or for GATE_UP of a pair of them.
    DEVICE void finish(int layer, int stage, int t, int row, int column, float total, float up, Best& best) const {
        int tile;
        const Part& p = part_of(layer, stage, t, tile);
        int n = tile * TILE_N + column;
        if (n >= p.rows) return;
        float v = finished(p, row, n, total);
        if (stage == QKV) {
            int width = (a.rope.heads + 2 * a.rope.kv_heads) * a.rope.head_dim;
            const_cast<float*>(a.rope.qkv)[int64_t(row) * width + p.column + n] = v;
        } else if (stage == GATE_UP) {
            v = silu_mul(v, finished(layers[layer].parts[5], row, n, up));
            a.ff[int64_t(row) * a.n_ff + n] = v;
            keep_largest(largest_of(layer, DOWN) + row, v);
        } else if (stage == HEAD) {
            a.logits[int64_t(row) * a.vocab + n] = v;
            if (!isfinite(v)) atomicOr(a.broken + row, 1u);
            best.see(a.best, row, rank(v, n));
        } else {
            float* x = a.embed.x + int64_t(row) * a.n_embd + n;
            *x = __fadd_rn(__ldcg(x), v);
        }
    }

    // All of this block's tiles of a stage.
    template <int ONLY> DEVICE void matmul(int layer, int stage) {
        const Shape s = shapes[stage];
        Best best;
        int flip = 0, per_tile = a.rows * TILE_N, pair = stage == GATE_UP ? 2 : 1;
        for (int group = 0; group * s.group < s.tiles; group++, flip ^= 1) {
            float* to = sums() + flip * (a.group_bytes / 8);
            int tiles = tiles_in_group(s, group);
            for (Item item(s, warp); item.tile < tiles; item.advance(s)) {
                int tile, first = item.segment * s.length;
                int type = ONLY != ANY ? ONLY : part_of(layer, stage, group * s.group + item.tile, tile).type;
                float d[4] = {};
                segment<ONLY>(d, type, first, min(first + s.length, s.units), stride(stage));
                if (lane.g < a.rows)
                    *reinterpret_cast<float2*>(
                        to + ((item.tile * s.segments + item.segment) * a.rows + lane.g) * TILE_N +
                        2 * lane.t) = make_float2(d[0], d[1]);
            }
            sync_computing();
            for (int i = threadIdx.x; i < tiles / pair * per_tile; i += STEP_THREADS) {
                int t = i / per_tile * pair, at = i % per_tile;
                float total = 0.0f, up = 0.0f;
#pragma unroll 4
                for (int j = 0; j < s.segments; j++) {
                    total = __fadd_rn(total, to[(t * s.segments + j) * per_tile + at]);
                    if (pair == 2) up = __fadd_rn(up, to[((t + 1) * s.segments + j) * per_tile + at]);
                }
                finish(layer, stage, group * s.group + t, at / TILE_N, at % TILE_N, total, up, best);
            }
        }
        if (stage == HEAD) best.tell(a.best);
    }

    // ---- prologues: rows of F32 become F16 under one power of two in shared memory ----

    // Columns k .. k+3 of a row that other blocks have written.
    DEVICE static Four written(const float* row, int k, int cols) {
        Four f = {{0, 0, 0, 0}};
        if (k + 3 < cols) {
            float4 x = __ldcg(reinterpret_cast<const float4*>(row + k));
            f = {{x.x, x.y, x.z, x.w}};
        }
        return f;
    }

    // Chunks of 128 columns, of one row after the other, are dealt to warps in turn; this many of
    // a warp's are kept in registers while a row is normalized, others are read again.
    static constexpr int HELD = 4;

    // The chunk's row and first column; the lane's own is 4 lanes on.
    DEVICE bool place(int chunk, int units, int& row, int& k) const {
        row = chunk < units ? 0 : chunk / units;
        k = (chunk - row * units) * UNIT + 4 * lane.id;
        return row < a.rows;
    }

    DEVICE void put(int stage, int row, int k, const Four& y, float down) {
        uint2 h = make_uint2(pack(__fmul_rn(y.v[0], down), __fmul_rn(y.v[1], down)),
                             pack(__fmul_rn(y.v[2], down), __fmul_rn(y.v[3], down)));
        *reinterpret_cast<uint2*>(inputs() + row * stride(stage) + 2 * k) = h;
    }

    // Leaves a row's exponent where `put` and `finish` find it.
    DEVICE float set_scale(int row, uint32_t largest_bits) {
        int e = row_exponent(__uint_as_float(largest_bits));
        scales()[row] = power_of_two(e);
        return power_of_two(-e);
    }

    // The rows' norm, in norm.cu's order.
    //
    // Short code matters here more than few operations: the whole step runs from the instruction
    // cache or not at all. So what a row needs once is worked out by one warp, not by all.
    DEVICE void normalize(int stage, const float* from, const float* weight) {
        const int units = shapes[stage].units, chunks = a.rows * units;
        float* squares = sums();  // free between stages
        uint32_t* largests = reinterpret_cast<uint32_t*>(squares + STEP_ROWS * MAX_UNITS);
        float* of_row = squares + 2 * STEP_ROWS * MAX_UNITS;
        Four held[HELD];
        int row, k;
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (place(warp + i * STEP_WARPS, units, row, k)) {
                held[i] = written(from + int64_t(row) * a.n_embd, k, a.n_embd);
                float s = warp_sum(sum_of_squares(held[i]));
                if (lane.id == 0) squares[warp + i * STEP_WARPS] = s;
            }
#pragma unroll 1
        for (int chunk = warp + HELD * STEP_WARPS; chunk < chunks; chunk += STEP_WARPS) {
            place(chunk, units, row, k);
            float s = warp_sum(sum_of_squares(written(from + int64_t(row) * a.n_embd, k, a.n_embd)));
            if (lane.id == 0) squares[chunk] = s;
        }
        sync_computing();
        if (warp < a.rows) {
            float sum = 0.0f;
#pragma unroll 4
            for (int c = 0; c < units; c++) sum = __fadd_rn(sum, squares[warp * units + c]);
            of_row[warp] = inverse_norm(sum, a.n_embd, a.eps);
        }
        sync_computing();
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (place(warp + i * STEP_WARPS, units, row, k)) {
                held[i] = weighted(held[i], weight, k, of_row[row]);
                uint32_t max = __reduce_max_sync(~0u, __float_as_uint(largest(held[i])));
                if (lane.id == 0) largests[warp + i * STEP_WARPS] = max;
            }
#pragma unroll 1
        for (int chunk = warp + HELD * STEP_WARPS; chunk < chunks; chunk += STEP_WARPS) {
            place(chunk, units, row, k);
            Four y = weighted(written(from + int64_t(row) * a.n_embd, k, a.n_embd), weight, k, of_row[row]);
            uint32_t max = __reduce_max_sync(~0u, __float_as_uint(largest(y)));
            if (lane.id == 0) largests[chunk] = max;
        }
        sync_computing();
        if (warp < a.rows) {
            uint32_t max = 0;
            for (int c = lane.id; c < units; c += 32) max = ::max(max, largests[warp * units + c]);
            float down = set_scale(warp, __reduce_max_sync(~0u, max));
            of_row[STEP_ROWS + warp] = down;
        }
        sync_computing();
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (place(warp + i * STEP_WARPS, units, row, k)) put(stage, row, k, held[i], of_row[STEP_ROWS + row]);
#pragma unroll 1
        for (int chunk = warp + HELD * STEP_WARPS; chunk < chunks; chunk += STEP_WARPS) {
            place(chunk, units, row, k);
            Four y = weighted(written(from + int64_t(row) * a.n_embd, k, a.n_embd), weight, k, of_row[row]);
            put(stage, row, k, y, of_row[STEP_ROWS + row]);
        }
        sync_computing();
    }

    DEVICE Four weighted(Four y, const float* weight, int k, float inverse) const {
        Four w = four(weight, k, a.n_embd);
#pragma unroll
        for (int j = 0; j < 4; j++) y.v[j] = __fmul_rn(__fmul_rn(y.v[j], inverse), w.v[j]);
        return y;
    }

    // Rows as they are. Whoever wrote them has kept the largest value.
    DEVICE void take(int layer, int stage, const float* from, int cols) {
        const int units = shapes[stage].units, chunks = a.rows * units;
        const uint32_t* largest = largest_of(layer, stage);
        int row, k;
#pragma unroll 2
        for (int chunk = warp; chunk < chunks; chunk += STEP_WARPS) {
            place(chunk, units, row, k);
            float down = set_scale(row, __ldcg(largest + row));
            put(stage, row, k, written(from + int64_t(row) * cols, k, cols), down);
        }
        sync_computing();
    }

    DEVICE uint32_t* largest_of(int layer, int stage) const {
        return a.largest + (2 * layer + (stage == DOWN)) * STEP_ROWS;
    }

    // ---- stages ----

    // Everybody's writes are in the second-level cache before anybody goes on. Whoever waits does
    // so with a relaxed load: an acquire would empty the first-level caches, and everything that
    // other blocks have written is read past those anyway (`__ldcg`).
    DEVICE void grid_barrier() {
        sync_computing();
        target += gridDim.x;
        if (threadIdx.x == 0) {
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.arrived) : "memory");
            uint32_t seen;
            do {
                asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(a.arrived) : "memory");
            } while (int32_t(seen - target) < 0);
        }
        sync_computing();
    }

    // Asks for what the stages to come will read for the first time in this step: the norms, and
    // the keys and values of this layer.
    DEVICE void prefetch(int layer, int stage) const {
        if (stage != QKV) return;
        const int lines = (a.n_embd * 4 + 127) / 128, block = blockIdx.x;
        if (block == gridDim.x - 1)
            for (int i = threadIdx.x; i < lines; i += STEP_THREADS) touch(layers[layer].ffn_norm + 32 * i);
        if (block == gridDim.x - 2 && layer + 1 < a.n_layers)
            for (int i = threadIdx.x; i < lines; i += STEP_THREADS) touch(layers[layer + 1].attn_norm + 32 * i);
        if (block >= a.rows * a.rope.kv_heads) return;
        int row = block / a.rope.kv_heads, kv = block - row * a.rope.kv_heads;
        int in_page = a.rope.head_dim * PAGE / 64, pages = local.rows[row].position / PAGE + 1;
        KvArgs at = a.rope.kv;
        at.layer_offset += layer * a.layer_halves;
        for (int i = threadIdx.x; i < pages * in_page; i += STEP_THREADS) {
            int page = local.tables[row][i / in_page], line = i % in_page;
            touch(key_at(at, page, kv, a.rope.head_dim) + 64 * line);
            touch(value_at(at, page, kv, a.rope.kv_heads, a.rope.head_dim) + 64 * line);
        }
    }

    DEVICE static void touch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

    template <int HD, int ONLY> DEVICE void run() {
        if (blockIdx.x < a.rows) {
            int token = local.rows[blockIdx.x].token, bytes = unit_bytes(a.embed.type);
            const uint8_t* tile = a.embed.table + uint64_t(token / TILE_N) * a.embed.units * bytes;
            for (int k = threadIdx.x; k < a.n_embd; k += STEP_THREADS)
                a.embed.x[int64_t(blockIdx.x) * a.n_embd + k] =
                    weight_at(a.embed.type, tile + (k / UNIT) * bytes, token % TILE_N, k % UNIT);
            if (threadIdx.x == 0) {
                a.best[blockIdx.x] = 0;
                a.broken[blockIdx.x] = 0;
            }
        }
        for (int i = blockIdx.x * STEP_THREADS + threadIdx.x; i < a.n_layers * 2 * STEP_ROWS;
             i += gridDim.x * STEP_THREADS)
            a.largest[i] = 0;
        // One body for all stages: the whole loop must stay in the instruction cache.
        for (int layer = 0, stage = QKV;;) {
            grid_barrier();
            prefetch(layer, stage);
            const StepLayer& l = layers[min(layer, a.n_layers - 1)];
            if (stage == ATTEND) {
                if (blockIdx.x < a.rows * a.rope.kv_heads) attend<HD>(a, l, local, inputs(), layer);
                stage = OUTPUT;
                continue;
            }
            const float* weight = stage == QKV ? l.attn_norm : stage == GATE_UP ? l.ffn_norm
                                : stage == HEAD ? a.head_norm : nullptr;
            const float* from = weight ? a.embed.x : stage == OUTPUT ? a.attention.out : a.ff;
            int cols = weight ? a.n_embd : stage == OUTPUT ? a.rope.heads * a.rope.head_dim : a.n_ff;
            if (weight) normalize(stage, from, weight);
            else take(layer, stage, from, cols);
            matmul<ONLY>(min(layer, a.n_layers - 1), stage);
            if (stage == HEAD) return;
            if (stage == QKV) stage = ATTEND;
            else if (stage == OUTPUT) stage = GATE_UP;
            else if (stage == GATE_UP) stage = DOWN;
            else stage = ++layer < a.n_layers ? QKV : HEAD;
        }
    }
};

// What a stage is for block `block`, tiles dealt from where the stage before ended.
DEVICE Shape shape_of(const StepArgs& a, const StepLayer& layer, int stage) {
    auto tiles_of = [&](int s) {
        return s == QKV ? layer.parts[0].tiles + layer.parts[1].tiles + layer.parts[2].tiles
             : s == OUTPUT ? layer.parts[3].tiles : s == GATE_UP ? layer.parts[4].tiles
             : s == DOWN ? layer.parts[6].tiles : a.head.tiles;
    };
    int blocks = gridDim.x, before = 0, tiles = tiles_of(stage);
    for (int s = 0; s < stage; s++) before += tiles_of(s);
    int cols = stage == OUTPUT ? a.rope.heads * a.rope.head_dim : stage == DOWN ? a.n_ff : a.n_embd;
    Shape s;
    s.first = (int(blockIdx.x) + blocks - before % blocks) % blocks;
    s.tiles = s.first < tiles ? (tiles - s.first + blocks - 1) / blocks : 0;
    if (stage == GATE_UP) s.tiles *= 2;
    s.units = (cols + UNIT - 1) / UNIT;
    s.length = segment_units(s.units);
    s.segments = (s.units + s.length - 1) / s.length;
    // Two buffers of sums; an even number of tiles, so that gate and up meet.
    s.group = max(2, a.group_bytes / 2 / (s.segments * a.rows * TILE_N * 4) & ~1);
    s.skip_tiles = STEP_WARPS / s.segments;
    s.skip_segments = STEP_WARPS % s.segments;
    return s;
}

template <int HD, int ONLY> DEVICE void decode_step(const StepArgs& a) {
    extern __shared__ __align__(128) uint8_t room[];
    __shared__ Shape shapes[STAGES];
    __shared__ uint64_t full[STEP_WARPS][MAX_SLOTS];
    __shared__ Local local;
    __shared__ volatile uint32_t taken[STEP_WARPS];
    StepLayer* layers = reinterpret_cast<StepLayer*>(room + a.layers_at);
    const uint32_t* from = reinterpret_cast<const uint32_t*>(a.layers);
    for (int i = threadIdx.x; i < a.n_layers * int(sizeof(StepLayer) / 4); i += BLOCK_THREADS)
        reinterpret_cast<uint32_t*>(layers)[i] = from[i];
    if (threadIdx.x < STAGES) shapes[threadIdx.x] = shape_of(a, a.layers[0], threadIdx.x);
    for (int row = 0; row < a.rows; row++) {
        Row r = a.rope.rows[row];
        if (threadIdx.x == 0) local.rows[row] = r;
        for (int i = threadIdx.x; i <= r.position / PAGE; i += BLOCK_THREADS)
            local.tables[row][i] = a.rope.kv.tables[r.table + i];
        for (int i = threadIdx.x; i < a.rope.dims / 2; i += BLOCK_THREADS)
            local.turns[row][i] = a.rope.turns[int64_t(r.position) * (a.rope.dims / 2) + i];
    }
    int warp = threadIdx.x / 32;
    if (threadIdx.x < STEP_WARPS) taken[threadIdx.x] = 0;
    if (warp < STEP_WARPS && (threadIdx.x & 31) < a.slots) barrier_init(full[warp] + (threadIdx.x & 31));
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    Schedule schedule = {a, layers, shapes};
    if (warp == STEP_WARPS) {
        int of = min(int(threadIdx.x & 31), STEP_WARPS - 1);
        Feeder feeder = {schedule, of, room + a.rings_at + of * a.slots * a.slot_bytes, full[of],
                         taken + of, {}, {}, 0, 0, 0, QKV, 0, 0, 0, 0, Item(shapes[QKV], of), nullptr};
        feeder.settle();
        if ((threadIdx.x & 31) < STEP_WARPS)
            while (!feeder.is_done()) feeder.poll();
        return;
    }
    Step step = {schedule, room, local, Lane(), warp, a.arrived_before,
                 room + a.rings_at + warp * a.slots * a.slot_bytes, full[warp], taken + warp, {}, 0};
    step.template run<HD, ONLY>();
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define DECODE_STEP(HD, NAME, ONLY)                                                    \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                      \
    decode_step_##HD##_##NAME(const __grid_constant__ StepArgs a) { decode_step<HD, ONLY>(a); }
#define EACH_HEAD(NAME, ONLY)                                                          \
    DECODE_STEP(32, NAME, ONLY) DECODE_STEP(64, NAME, ONLY) DECODE_STEP(96, NAME, ONLY) \
    DECODE_STEP(128, NAME, ONLY)
EACH_HEAD(any, ANY) DECODE_STEP(64, F16, F16) DECODE_STEP(128, F16, F16) DECODE_STEP(64, Q8_0, Q8_0)
DECODE_STEP(128, Q8_0, Q8_0)
#endif
