// The parts of a decode step, and which block does which of them.
//
// Blocks are of two kinds. The first few compute attention, each for some (row, key-value head) pairs or for
// a part of one (step_attention.cuh). The others multiply: tile `i` of a stage belongs to block (i + shift) % blocks. The shift goes on from where
// the stage before ended, so that it is not always the same block that has a tile more.
#pragma once
#include "attention.cuh"
#include "embed.cuh"
#include "exchange.cuh"
#include "matmul.cuh"
#include "rope_kv.cuh"

// Consumers, the warps that compute; and a warpgroup behind them, of which one thread is the producer: it
// fills the ring.
constexpr int STEP_WARPS = 16;
constexpr int STEP_THREADS = 32 * STEP_WARPS;
constexpr int BLOCK_THREADS = STEP_THREADS + 128;
// Registers a thread: a launch gives all of a block's warps 96; the producer's warpgroup leaves most of
// its own to the consumers.
constexpr int PRODUCER_REGISTERS = 32, CONSUMER_REGISTERS = 112;
static_assert(STEP_THREADS * CONSUMER_REGISTERS + 128 * PRODUCER_REGISTERS <= BLOCK_THREADS * 96);
constexpr int STEP_ROWS = 4;
constexpr int STEP_HEAD = 128;  // dims of a head, at most
constexpr int MAX_UNITS = 64;   // of a row that is normalized
constexpr int PIECE_UNITS = 8;  // of a tile in one piece, at most
constexpr int MIXED = -1;       // matrices of a stage differ in type

enum Stage : int { QKV = 0, OUTPUT = 1, GATE_UP = 2, DOWN = 3, HEAD = 4, STAGES = 5 };

struct StepLayer {
    Part parts[7];  // q, k, v, output, gate, up, down
    const float *attn_norm, *ffn_norm, *q_norm, *k_norm;
    float attn_up, ff_up;  // powers of two of the inputs of output and down (input_rows.cuh)
};
LAYOUT(StepLayer, 264, AT(parts, 0) AT(attn_norm, 224) AT(ffn_norm, 232) AT(q_norm, 240)
       AT(k_norm, 248) AT(attn_up, 256) AT(ff_up, 260))

// What attention needs of a layer, where blocks that compute it do not have the whole table.
struct HeadNorms {
    const float *q_norm, *k_norm;
};
LAYOUT(HeadNorms, 16, AT(q_norm, 0) AT(k_norm, 8))

constexpr int REPLICAS = 4;
// Vectors that blocks publish to each other, each STEP_ROWS rows of whole units (exchange.cuh). There are
// REPLICAS of all of them, `stride` words apart: a value is published to every replica, and a block polls
// one of them, so that not all blocks poll the same cache line.
struct Exchange {
    Word *x;     // [n_embd] the residual stream
    Word *qkv;   // [(heads + 2 kv_heads) * head_dim]
    Word *attn;  // [heads * head_dim], in a model without experts as halves
    Word *ff;    // [n_ff], likewise
    uint64_t stride;
    // Partial results of attention, [heads][partial_splits][head_dim + 2] a row, which has no replicas: it
    // is large, and few warps poll a word.
    Word *partials;

    // The replica of a vector that this block polls; `first` is in replica 0.
    DEVICE const Word* replica(const Word* first) const { return first + (blockIdx.x % REPLICAS) * stride; }
    DEVICE void publish_to_replicas(Word* at, float v, uint32_t tag) const {
#pragma unroll
        for (int i = 0; i < REPLICAS; i++) publish(at + i * stride, v, tag);
    }
    // Two neighbouring columns, the first of them even, by two neighbouring lanes, of which each has one, multiplied by `up`.
    // `at` is their word (halves_index).
    DEVICE void publish_halves_to_replicas(Word* at, float v, float up, uint32_t tag) const {
        static_assert(REPLICAS == 4);  // a lane publishes to two of them
        const int lane = threadIdx.x & 31, odd = lane & 1;
        const float own = __fmul_rn(v, up), other = __shfl_xor_sync(3u << (lane - odd), own, 1);
        const uint32_t both = odd ? pack(other, own) : pack(own, other);
        at += odd * 2 * stride;
        publish_bits(at, both, tag);
        publish_bits(at + stride, both, tag);
    }
};
LAYOUT(Exchange, 48, AT(x, 0) AT(qkv, 8) AT(attn, 16) AT(ff, 24) AT(stride, 32) AT(partials, 40))

// Offsets of the parts of a block's shared memory, in bytes (host: device/cuda/shared_plan.rs).
struct SharedPlan {
    int slot_bytes, slots, sums_bytes, inputs_at, norm_at, sums_at, layers_at, ring_at;
    int piece_units;  // of a tile in one piece, at most
    int window;       // pieces in flight at a time
    // Of a block that computes attention: teams, and splits of a pair whose partial results it has room for.
    int teams, kept_splits;
};
LAYOUT(SharedPlan, 48, AT(slot_bytes, 0) AT(slots, 4) AT(sums_bytes, 8) AT(inputs_at, 12)
       AT(norm_at, 16) AT(sums_at, 20) AT(layers_at, 24) AT(ring_at, 28) AT(piece_units, 32)
       AT(window, 36) AT(teams, 40) AT(kept_splits, 44))

// A model's experts (step_experts.cuh). `gate`, `up` and `down` of its layers are those of one expert, and `n_ff` is
// an expert's; others lie behind them.
struct StepMixture {
    const Part* routers;  // of each layer
    Word* logits;         // published, with replicas as those of Exchange
    int experts, used;    // without experts: 0 and 1
    int weighing, unused;
};
LAYOUT(StepMixture, 32, AT(routers, 0) AT(logits, 8) AT(experts, 16) AT(used, 20) AT(weighing, 24) AT(unused, 28))

struct StepArgs {
    const StepLayer* layers;
    EmbedArgs embed;
    RopeArgs rope;            // of layer 0, without norms; the layer's are filled in
    AttentionArgs attention;  // likewise
    Part head;
    const float* head_norm;
    Exchange exchange;
    float* logits;             // [rows, vocab]
    unsigned long long* best;  // [rows] rank of the best logit
    uint32_t* broken;          // [rows] not zero where a logit is not finite
    uint32_t* board;           // board.cuh
    uint32_t first_tag;        // of this step's first exchange (exchange.cuh)
    int n_layers, rows, n_embd, n_ff, vocab;
    int attention_blocks;
    int parts;                 // of them for a pair
    int partial_splits;        // a head's room for published partial results; 0: none are published
    int unrotated_every;       // the last of so many layers does not rotate queries and keys; 0: all do
    uint64_t layer_halves;     // of the KV cache
    float eps;
    SharedPlan shared;
    int unused;
    StepMixture mixture;
};
LAYOUT(StepArgs, 512, AT(layers, 0) AT(embed, 8) AT(rope, 48) AT(attention, 160) AT(head, 256)
       AT(head_norm, 288) AT(exchange, 296) AT(logits, 344) AT(best, 352) AT(broken, 360)
       AT(board, 368) AT(first_tag, 376) AT(n_layers, 380) AT(rows, 384) AT(n_embd, 388) AT(n_ff, 392)
       AT(vocab, 396) AT(attention_blocks, 400) AT(parts, 404) AT(partial_splits, 408)
       AT(unrotated_every, 412) AT(layer_halves, 416) AT(eps, 424) AT(shared, 428)
       AT(unused, 476) AT(mixture, 480))

// Tags of a layer's exchanges, counted from the layer's first; the embedding has the step's first tag.
enum Tag : int {
    QKV_TAG = 1, PARTIAL_TAG = 2, ATTENTION_TAG = 3, OUTPUT_TAG = 4, GATE_UP_TAG = 5, DOWN_TAG = 6
};
constexpr int EXCHANGES = 6;  // of a layer

DEVICE uint32_t tag_of(const StepArgs& a, int layer, Tag tag) {
    return a.first_tag + layer * EXCHANGES + tag;
}

// This block's word of the board, posted by one thread of the warp that is the likeliest to have no part of
// a product.
DEVICE void post_block(const StepArgs& a, uint32_t v) {
    if (threadIdx.x == STEP_THREADS - 1) post(a.board + BOARD_BLOCKS + blockIdx.x, v);
}
// The end of this block's work: the tag behind those of all exchanges.
DEVICE void post_end(const StepArgs& a) { post_block(a, a.first_tag + a.n_layers * EXCHANGES + 1); }

// A division n / by for n * by < 2^32, by multiplying.
struct Divisor {
    uint32_t by, inverse;

    Divisor() = default;
    DEVICE Divisor(int n) : by(n), inverse(n == 1 ? 0 : 0xFFFFFFFFu / n + 1) {}
    DEVICE int of(int n) const { return inverse ? int(__umulhi(n, inverse)) : n; }
};

// A stage's shape, as one block sees it.
struct StageShape {
    int tiles;           // matrices' tiles of this block; of GATE_UP twice its pairs
    int first;           // the first of them; then every `blocks`
    int pieces;          // of a pair of tiles
    int group;           // tiles whose sums are kept at a time
    Divisor units, segments;
    Divisor pairs_per_pass;  // pairs of tiles that the warps multiply at a time, one segment a warp
    Divisor workers;         // warps that have a segment then
    Divisor piece;  // units of a tile in one piece
};

// A tile of a stage: its matrix, and its index there.
struct StageTile {
    const Part* part;
    int tile;
};

struct Plan {
    const StepArgs& a;
    const StepLayer* layers;
    const StageShape* shapes;
    // The number of blocks that multiply.
    DEVICE int blocks() const { return gridDim.x - a.attention_blocks; }

    DEVICE StageTile place(int layer, int stage, int t) const {
        const Part* parts = layers[layer].parts;
        int first = shapes[stage].first;
        if (stage == GATE_UP) return {parts + 4 + (t & 1), first + (t >> 1) * blocks()};
        int tile = first + t * blocks();
        if (stage != QKV) return {stage == HEAD ? &a.head : parts + (stage == OUTPUT ? 3 : 6), tile};
        int p = 0;
        while (tile >= parts[p].tiles) tile -= parts[p++].tiles;
        return {parts + p, tile};
    }
    // Tiles 2i and 2i + 1 of a stage are a pair, which is copied and multiplied as sixteen rows where both
    // are there and of one type; otherwise each of them is alone in a pair.
    DEVICE bool is_pair(int layer, int stage, int t) const {
        return t + 1 < shapes[stage].tiles
            && place(layer, stage, t).part->ty == place(layer, stage, t + 1).part->ty;
    }
    // The type of all tiles, so that `is_pair` is true of every two; or MIXED.
    DEVICE int type_of(int layer, int stage) const {
        const Part* parts = layers[layer].parts;
        switch (stage) {
            case QKV: return parts[0].ty == parts[1].ty && parts[0].ty == parts[2].ty ? parts[0].ty : MIXED;
            case OUTPUT: return parts[3].ty;
            case GATE_UP: return parts[4].ty == parts[5].ty ? parts[4].ty : MIXED;
            case DOWN: return parts[6].ty;
            default: return a.head.ty;
        }
    }
};

// Tiles of a stage, of whose experts a row has `used`; without experts 1.
DEVICE int tiles_of(const StepArgs& a, int stage, int used) {
    const Part* p = a.layers[0].parts;
    return stage == QKV ? p[0].tiles + p[1].tiles + p[2].tiles : stage == OUTPUT ? p[3].tiles
         : stage == GATE_UP ? p[4].tiles * used : stage == DOWN ? p[6].tiles : a.head.tiles;
}

DEVICE int columns_of(const StepArgs& a, int stage) {
    return stage == OUTPUT ? a.rope.heads * a.rope.head_dim : stage == DOWN ? a.n_ff : a.n_embd;
}

DEVICE StageShape shape_of(const StepArgs& a, int stage, int used, int block, int blocks) {
    int before = 0, tiles = tiles_of(a, stage, used);
    for (int s = 0; s < stage; s++) before += tiles_of(a, s, used);
    StageShape s;
    s.first = (block + blocks - before % blocks) % blocks;
    s.tiles = s.first < tiles ? (tiles - s.first + blocks - 1) / blocks : 0;
    if (stage == GATE_UP) s.tiles *= 2;
    int units = (columns_of(a, stage) + UNIT - 1) / UNIT;
    int segments = segments_of(units);
    s.pieces = (units + a.shared.piece_units - 1) / a.shared.piece_units;
    s.piece = Divisor((units + s.pieces - 1) / s.pieces);
    s.units = Divisor(units);
    s.segments = Divisor(segments);
    s.pairs_per_pass = Divisor(STEP_WARPS / segments);
    s.workers = Divisor(STEP_WARPS / segments * segments);
    // An even number, so that a group has both tiles of a pair.
    s.group = max(2, a.shared.sums_bytes / (segments * a.rows * TILE_N * 4) & ~1);
    return s;
}
