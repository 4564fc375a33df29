// What a decode step is made of, and which block does which part of it.
//
// Blocks come in two kinds. The first few attend, each for some (row, key-value head) pairs. The
// others multiply: tile `i` of a stage belongs to block (i + shift) % blocks, tiles being dealt
// on from where the stage before ended, so that no block is always the one with a tile more.
#pragma once
#include "attention.cuh"
#include "embed.cuh"
#include "exchange.cuh"
#include "matmul.cuh"
#include "rope_kv.cuh"

// Warps that compute, and a warpgroup behind them, of which one thread feeds the ring.
constexpr int STEP_WARPS = 16;
constexpr int STEP_THREADS = 32 * STEP_WARPS;
constexpr int BLOCK_THREADS = STEP_THREADS + 128;
// A launch gives all of a block's 20 warps 96 registers a thread; the feeder's warpgroup leaves most
// of its own to the others.
constexpr int FEEDER_REGISTERS = 32, COMPUTING_REGISTERS = 112;
static_assert(STEP_THREADS * COMPUTING_REGISTERS + 128 * FEEDER_REGISTERS <= BLOCK_THREADS * 96);
constexpr int STEP_ROWS = 4;
constexpr int MAX_UNITS = 64;   // of a row that is normalized
constexpr int PIECE_UNITS = 8;  // of one copy at most
constexpr int ANY = -1;         // tensor types differ between matrices

enum Stage : int { QKV = 0, OUTPUT = 1, GATE_UP = 2, DOWN = 3, HEAD = 4, STAGES = 5 };

struct StepLayer {
    Part parts[7];  // q, k, v, output, gate, up, down
    const float *attn_norm, *ffn_norm, *q_norm, *k_norm;
};
LAYOUT(StepLayer, 256, AT(parts, 0) AT(attn_norm, 224) AT(ffn_norm, 232) AT(q_norm, 240)
       AT(k_norm, 248))

constexpr int COPIES = 4;
// Vectors that blocks hand each other, each STEP_ROWS rows of whole units (exchange.cuh). There are
// COPIES of all of them, `stride` words apart: whoever tells tells all copies, and blocks share them
// out, lest a hundred of them ask for the same line at once.
struct Exchange {
    Word *x;    // [n_embd] the residual stream
    Word *qkv;  // [(heads + 2 kv_heads) * head_dim]
    Word *attended;  // [heads * head_dim]
    Word *ff;   // [n_ff]
    uint64_t stride;

    // Of the copy that this block listens to.
    DEVICE const Word* heard(const Word* first) const { return first + (blockIdx.x % COPIES) * stride; }
    DEVICE void tell_all(Word* at, float v, uint32_t number) const {
#pragma unroll
        for (int i = 0; i < COPIES; i++) tell(at + i * stride, v, number);
    }
};
LAYOUT(Exchange, 40, AT(x, 0) AT(qkv, 8) AT(attended, 16) AT(ff, 24) AT(stride, 32))

// Where things lie in a block's shared memory, in bytes from its start (host: device/cuda/decode_step.rs).
struct SharedPlan {
    int slot_bytes, slots, sums_bytes, inputs_at, norm_at, sums_at, layers_at, ring_at;
    int window;  // pieces under way at a time
};
LAYOUT(SharedPlan, 36, AT(slot_bytes, 0) AT(slots, 4) AT(sums_bytes, 8) AT(inputs_at, 12)
       AT(norm_at, 16) AT(sums_at, 20) AT(layers_at, 24) AT(ring_at, 28) AT(window, 32))

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
    uint32_t number;           // of this step's first exchange (exchange.cuh)
    int n_layers, rows, n_embd, n_ff, vocab;
    int attention_blocks;
    uint64_t layer_halves;     // of the KV cache
    float eps;
    SharedPlan shared;
};
LAYOUT(StepArgs, 432, AT(layers, 0) AT(embed, 8) AT(rope, 48) AT(attention, 152) AT(head, 240)
       AT(head_norm, 272) AT(exchange, 280) AT(logits, 320) AT(best, 328) AT(broken, 336)
       AT(board, 344) AT(number, 352) AT(n_layers, 356) AT(rows, 360) AT(n_embd, 364) AT(n_ff, 368)
       AT(vocab, 372) AT(attention_blocks, 376) AT(layer_halves, 384) AT(eps, 392) AT(shared, 396))

// Numbers of a layer's exchanges follow each other; the embedding has the step's first.
enum Made : int { BY_QKV = 1, BY_ATTENTION = 2, BY_OUTPUT = 3, BY_GATE_UP = 4, BY_DOWN = 5 };
constexpr int EXCHANGES = 5;  // a layer

DEVICE uint32_t number_of(const StepArgs& a, int layer, Made made) {
    return a.number + layer * EXCHANGES + made;
}

// Of this block, by one thread of the warp that is the likeliest to have no share of a product.
DEVICE void post_block(const StepArgs& a, uint32_t v) {
    if (threadIdx.x == STEP_THREADS - 1) post(a.board + BOARD_BLOCKS + blockIdx.x, v);
}
// Behind the numbers of all exchanges: this block is done.
DEVICE void post_end(const StepArgs& a) { post_block(a, a.number + a.n_layers * EXCHANGES + 1); }

// n / by for n * by < 2^32, without dividing.
struct Divisor {
    uint32_t by, inverse;

    Divisor() = default;
    DEVICE Divisor(int n) : by(n), inverse(n == 1 ? 0 : 0xFFFFFFFFu / n + 1) {}
    DEVICE int of(int n) const { return inverse ? int(__umulhi(n, inverse)) : n; }
};

// What a stage looks like from one block.
struct Shape {
    int tiles;   // matrices' tiles of this block; of GATE_UP twice its pairs
    int first;   // the first of them; then every `blocks`
    bool is_short;  // a segment is one unit
    int pieces;  // copies a tile
    int group;   // tiles whose sums are kept at a time
    int abreast; // tiles that the warps multiply at a time, one segment a warp
    Divisor units, segments;
    Divisor piece;  // units of a copy
};

// A tile of a stage: its matrix, and where in the matrix it lies.
struct Place {
    const Part* part;
    int tile;
};

struct Plan {
    const StepArgs& a;
    const StepLayer* layers;
    const Shape* shapes;
    // That multiply.
    DEVICE int blocks() const { return gridDim.x - a.attention_blocks; }

    DEVICE Place place(int layer, int stage, int t) const {
        const Part* parts = layers[layer].parts;
        int first = shapes[stage].first;
        if (stage == GATE_UP) return {parts + 4 + (t & 1), first + (t >> 1) * blocks()};
        int tile = first + t * blocks();
        if (stage != QKV) return {stage == HEAD ? &a.head : parts + (stage == OUTPUT ? 3 : 6), tile};
        int p = 0;
        while (tile >= parts[p].tiles) tile -= parts[p++].tiles;
        return {parts + p, tile};
    }
    DEVICE bool is_of_one_type(int layer, int stage) const {
        const Part* parts = layers[layer].parts;
        if (stage == QKV) return parts[0].ty == parts[1].ty && parts[0].ty == parts[2].ty;
        return stage != GATE_UP || parts[4].ty == parts[5].ty;
    }
};

DEVICE int tiles_of(const StepArgs& a, int stage) {
    const Part* p = a.layers[0].parts;
    return stage == QKV ? p[0].tiles + p[1].tiles + p[2].tiles : stage == OUTPUT ? p[3].tiles
         : stage == GATE_UP ? p[4].tiles : stage == DOWN ? p[6].tiles : a.head.tiles;
}

DEVICE int columns_of(const StepArgs& a, int stage) {
    return stage == OUTPUT ? a.rope.heads * a.rope.head_dim : stage == DOWN ? a.n_ff : a.n_embd;
}

DEVICE Shape shape_of(const StepArgs& a, int stage, int block, int blocks) {
    int before = 0, tiles = tiles_of(a, stage);
    for (int s = 0; s < stage; s++) before += tiles_of(a, s);
    Shape s;
    s.first = (block + blocks - before % blocks) % blocks;
    s.tiles = s.first < tiles ? (tiles - s.first + blocks - 1) / blocks : 0;
    if (stage == GATE_UP) s.tiles *= 2;
    int units = (columns_of(a, stage) + UNIT - 1) / UNIT;
    int segments = segments_of(units);
    s.is_short = segments == units;
    s.pieces = (units + PIECE_UNITS - 1) / PIECE_UNITS;
    s.piece = Divisor((units + s.pieces - 1) / s.pieces);
    s.units = Divisor(units);
    s.segments = Divisor(segments);
    s.abreast = STEP_WARPS / segments;
    // An even number, so that gate and up meet.
    s.group = max(2, a.shared.sums_bytes / (segments * a.rows * TILE_N * 4) & ~1);
    return s;
}
