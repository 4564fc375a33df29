// A whole decode step in one launch: up to four sequences, one token each.
//
// At this size a step is a chain of some hundred small products, each a microsecond of memory
// time behind a microsecond of waiting. So one block stays on every multiprocessor for the whole
// step, vectors go from block to block by one trip through the second-level cache (exchange.cuh),
// and weights never wait for them (ring.cuh). What is left exposed is the chain itself:
//
//   embed | norm, QKV | head norms, RoPE, KV, attention | output | norm, gate and up, silu | down
//         | ... | final norm, logits, argmax
//
// Bits: units, segments and every reduction are those of the other kernels, mostly by calling the
// same functions; an input is prepared by every block alike. See matmul.cuh, norm.cuh.
//
// A stage is a chain of dependent instructions of a few warps, four to ten cycles each: what is
// known before a vector arrives is worked out before, stages are written out one by one, and one
// row has kernels of its own.
#include "step_products.cuh"

// Rows of the stream, by the block of the row's number.
DEVICE void embed_rows(const StepArgs& a, int block) {
    if (block >= a.rows) return;
    if (threadIdx.x == 0) {
        a.best[block] = 0;
        a.broken[block] = 0;
    }
    __threadfence();  // before anybody can have seen what follows
    __syncthreads();
    int token = a.rope.rows[block].token, bytes = unit_bytes(a.embed.ty);
    const uint8_t* tile = a.embed.table + uint64_t(token / TILE_N) * a.embed.units * bytes;
#pragma unroll 1
    for (int k = threadIdx.x; k < a.n_embd; k += BLOCK_THREADS)
        a.exchange.tell_all(a.exchange.x + block * row_words(a.n_embd) + word_of(k),
             weight_at(a.embed.ty, tile + (k / UNIT) * bytes, token % TILE_N, k % UNIT), a.number);
}

template <int HD, int ONLY, bool ALONE> DEVICE void decode_step(const StepArgs& a) {
    extern __shared__ __align__(128) uint8_t room[];
    __shared__ Shape shapes[STAGES];
    __shared__ Barriers barriers;
    __shared__ Meeting meeting;
    const int block = int(blockIdx.x) - a.attention_blocks;
    StepLayer* layers = reinterpret_cast<StepLayer*>(room + a.shared.layers_at);
    const uint32_t* from = reinterpret_cast<const uint32_t*>(a.layers);
    for (int i = threadIdx.x; i < a.n_layers * int(sizeof(StepLayer) / 4); i += BLOCK_THREADS)
        reinterpret_cast<uint32_t*>(layers)[i] = from[i];
    if (threadIdx.x < STAGES) shapes[threadIdx.x] = shape_of(a, threadIdx.x, max(block, 0), gridDim.x - a.attention_blocks);
    barriers.init(a.shared.slots);
    barriers_made();
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) post(a.board + BOARD_NUMBER, a.number);
    embed_rows(a, block < 0 ? a.rows : block);
    if (threadIdx.x >= STEP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEEDER_REGISTERS));
        if (block < 0 || threadIdx.x > STEP_THREADS) return;
        Plan plan = {a, layers, shapes};
        Ring ring = {room + a.shared.ring_at, shared_address(&barriers), a.shared.slot_bytes, Divisor(a.shared.slots)};
        Feeder(plan, ring).run();
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COMPUTING_REGISTERS));
    if (block < 0) {
        // Sums and the ring lie behind each other and are not needed here.
        Local& local = *reinterpret_cast<Local*>(room + a.shared.ring_at);
        int used = (int(sizeof(Local)) + 127) & ~127;
        Attention attention = {a, layers, local, room + a.shared.ring_at + used,
                               a.shared.slots * a.shared.slot_bytes - used};
        attention.run<HD>(blockIdx.x);
        return;
    }
    Plan plan = {a, layers, shapes};
    Ring ring = {room + a.shared.ring_at, shared_address(&barriers), a.shared.slot_bytes, Divisor(a.shared.slots)};
    // Heads of 96 and 128 columns belong to models with a wide ff.
    constexpr int FF_CHUNKS = !ALONE ? 4 : HD <= 64 ? 3 : 6;
    Products<ALONE, FF_CHUNKS>(plan, room, meeting, ring).template run<ONLY>();
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define DECODE_STEP(HD, NAME, ONLY)                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                              \
    decode_step_##HD##_##NAME(const __grid_constant__ StepArgs a) { decode_step<HD, ONLY, false>(a); } \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                              \
    decode_step_##HD##_##NAME##_alone(const __grid_constant__ StepArgs a) { decode_step<HD, ONLY, true>(a); }
#define EACH_HEAD(NAME, ONLY)                                                          \
    DECODE_STEP(32, NAME, ONLY) DECODE_STEP(64, NAME, ONLY) DECODE_STEP(96, NAME, ONLY) \
    DECODE_STEP(128, NAME, ONLY)
EACH_HEAD(any, ANY) DECODE_STEP(64, F16, F16) DECODE_STEP(128, F16, F16) DECODE_STEP(64, Q8_0, Q8_0)
DECODE_STEP(128, Q8_0, Q8_0)
#endif
