// A whole decode step in one launch: up to STEP_ROWS sequences, one token each.
//
// At this size a step is a chain of many small products, and the device would wait longer between
// launches than it computes. So one block stays on every multiprocessor for the whole step. Blocks publish
// vectors to each other through the second-level cache (exchange.cuh), and weights are copied ahead of
// them (ring.cuh).
//
// Stages of a layer; `t` is the tag of the layer's first exchange, a.first_tag + layer * EXCHANGES:
//
//   stage      reads                              writes                         tag of what it writes
//   embedding  row of the table                   x    [rows][n_embd]            t of layer 0
//   QKV        x (tag t)                          qkv  [rows][(heads             t + QKV_TAG
//                                                      + 2 kv_heads) * head_dim]
//   attention  qkv (t + QKV_TAG), KV pages        attn [rows][heads * head_dim], t + ATTENTION_TAG
//                                                 K and V of the new position
//     of a long  the same                           partials [rows][heads]         t + PARTIAL_TAG
//     context                                         [splits][head_dim + 2]
//                partials (t + PARTIAL_TAG)         attn                           t + ATTENTION_TAG
//   OUTPUT     attn (t + ATTENTION_TAG),          x    [rows][n_embd]            t + OUTPUT_TAG
//              x (t) as the residual
//   GATE_UP    x (t + OUTPUT_TAG)                 ff   [rows][n_ff]              t + GATE_UP_TAG
//   DOWN       ff (t + GATE_UP_TAG),              x    [rows][n_embd]            t + DOWN_TAG, which is
//              x (t + OUTPUT_TAG) as the residual                                t of the next layer
//   HEAD       x (t behind the last layer)        logits [rows][vocab] F32,      none: the launch ends
//                                                 best, broken
//
// x, qkv, attn and ff are vectors of words: 4 bytes of tag and 4 of value, which are a column of x or qkv in F32, or two of
// attn or ff in F16; rounded up to whole units of 128 columns, and REPLICAS of all of them. QKV, GATE_UP and HEAD normalize x
// first. Each stage reads its weights once from device memory, at the packed size of its matrices (weights.cuh), and
// nothing else that is large. bench/results/cuda.md has the times.
//
// Bits: units, segments and every reduction are those of the other kernels, mostly by calling the
// same functions; an input is prepared by every block alike. See matmul.cuh, norm.cuh.
//
// A stage is a chain of dependent instructions of a few warps. So everything that is known before a
// vector arrives is computed before, each stage is compiled by itself, and one row has kernels of its
// own.
#pragma once
#include "step_products.cuh"

// Embedding: row i of x, by block i.
DEVICE void embed_rows(const StepArgs& a, int block) {
    if (block >= a.rows) return;
    if (threadIdx.x == 0) {
        a.best[block] = 0;
        a.broken[block] = 0;
    }
    __threadfence();  // visible before the words that follow
    __syncthreads();
    int token = a.rope.rows[block].token, bytes = unit_bytes(a.embed.ty);
    const uint8_t* tile = a.embed.table + uint64_t(token / TILE_N) * a.embed.units * bytes;
#pragma unroll 1
    for (int k = threadIdx.x; k < a.n_embd; k += BLOCK_THREADS)
        a.exchange.publish_to_replicas(a.exchange.x + block * row_words(a.n_embd) + word_index(k),
             weight_at<true>(a.embed.ty, tile + (k / UNIT) * bytes, token % TILE_N, k % UNIT), a.first_tag);
}

// The products of a model without experts: of weights of these types, of one row or of several.
template <int HD, bool ALONE, int... TYPES> struct DenseStep {
    static constexpr bool COMPACT = false;
    struct Shared {};
    DEVICE static int used(const StepArgs&) { return 1; }
    DEVICE static void init(Shared&, const StepArgs&, int, int) {}
    DEVICE static void produce(const Plan& plan, const Ring& ring, Shared&) { Producer(plan, ring).run(); }
    DEVICE static void multiply(const Plan& plan, uint8_t* smem, RowReduction& reduction, const Ring& ring, Shared&) {
        // Heads of 96 and 128 columns belong to models with a wide ff.
        constexpr int FF_CHUNKS = !ALONE ? 6 : HD <= 64 ? 4 : 5;
        Products<ALONE, FF_CHUNKS>(plan, smem, reduction, ring).template run<TYPES...>();
    }
};

// STEP has what the blocks do that multiply. COMPACT: attention has fewer instructions, and blocks that compute it have of
// the layers' table only the norms of heads, which leaves room for more splits.
template <int HD, typename STEP> DEVICE void decode_step(const StepArgs& a) {
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ StageShape shapes[STAGES];
    __shared__ Barriers barriers;
    __shared__ RowReduction reduction;
    __shared__ typename STEP::Shared own;
    const int block = int(blockIdx.x) - a.attention_blocks;
    // Blocks that compute attention need nothing else of what others have in shared memory.
    StepLayer* layers = reinterpret_cast<StepLayer*>(smem + (block < 0 ? 0 : a.shared.layers_at));
    HeadNorms* norms = reinterpret_cast<HeadNorms*>(smem);
    if (STEP::COMPACT && block < 0) {
        for (int i = threadIdx.x; i < a.n_layers; i += BLOCK_THREADS) norms[i] = {a.layers[i].q_norm, a.layers[i].k_norm};
    } else {
        const uint32_t* from = reinterpret_cast<const uint32_t*>(a.layers);
        for (int i = threadIdx.x; i < a.n_layers * int(sizeof(StepLayer) / 4); i += BLOCK_THREADS)
            reinterpret_cast<uint32_t*>(layers)[i] = from[i];
    }
    if (threadIdx.x < STAGES) shapes[threadIdx.x] = shape_of(a, threadIdx.x, STEP::used(a), max(block, 0), gridDim.x - a.attention_blocks);
    barriers.init(a.shared, shared_address(smem + a.shared.ring_at));
    STEP::init(own, a, max(block, 0), gridDim.x - a.attention_blocks);
    fence_barrier_init();
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) post(a.board + BOARD_TAG, a.first_tag);
    embed_rows(a, block < 0 ? a.rows : block);
    if (threadIdx.x >= STEP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (block < 0 || threadIdx.x > STEP_THREADS) return;
        Plan plan = {a, layers, shapes};
        Ring ring(a.shared, barriers);
        STEP::produce(plan, ring, own);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    if (block < 0) {
        const int used = (a.n_layers * int(STEP::COMPACT ? sizeof(HeadNorms) : sizeof(StepLayer)) + 127) & ~127;
        if constexpr (STEP::COMPACT)
            Attention<HD, HeadNorms, true>(a, norms, smem + used, shared_address(&barriers)).run();
        else
            Attention<HD, StepLayer, false>(a, layers, smem + used, shared_address(&barriers)).run();
        return;
    }
    Plan plan = {a, layers, shapes};
    Ring ring(a.shared, barriers);
    STEP::multiply(plan, smem, reduction, ring, own);
}

// Kernels of several rows and of one, for heads of so many columns. Devices before compute capability 9 have none.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define STEP_KERNEL(NAME, HD, ...)                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                              \
    decode_step_##NAME(const __grid_constant__ StepArgs a) { decode_step<HD, __VA_ARGS__>(a); }
#else
#define STEP_KERNEL(NAME, HD, ...)
#endif
#define DECODE_STEP(HD, NAME, ...)                                           \
    STEP_KERNEL(HD##_##NAME, HD, DenseStep<HD, false, __VA_ARGS__>)           \
    STEP_KERNEL(HD##_##NAME##_alone, HD, DenseStep<HD, true, __VA_ARGS__>)
#define ANY_TYPE F32, F16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q6_K
