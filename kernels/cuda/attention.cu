// The kernels of attention.cuh: a block for all splits of a unit, or a block for each split and a kernel
// that merges them. A unit is a pair of tile and key-value head. Heads whose columns are too many for the registers of a
// warp (LARGE_HEAD and up) have four warps at one split, also where a block has all splits of a unit.
#include "attention_split.cuh"
#include "hopper.cuh"

// Partial results of a block's warps, which take the splits of a unit in turns; its threads merge them in
// order, a row and some of its columns each.
template <int HD, int WARPS> struct BlockPartials {
    static constexpr int STRIDE = HD + 8;
    // Threads of a row, two columns at a time.
    static constexpr int THREADS = WARPS * 2, EACH = HD / THREADS / 2;
    float o[WARPS][16][STRIDE];
    float max[WARPS][16], sum[WARPS][16];

    DEVICE void store(const SoftmaxState<HD>& state, int warp, const Lane& lane) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = lane.g + 8 * r;
            if (lane.t == 0) {
                max[warp][row] = state.max[r];
                sum[warp][row] = state.sum[r];
            }
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
                *reinterpret_cast<float2*>(&o[warp][row][8 * n + 2 * lane.t]) =
                    make_float2(state.o[n][2 * r], state.o[n][2 * r + 1]);
        }
    }
};


// All splits of a unit, one after the other by the block's four warps.
template <int HD> DEVICE void attention_in_turn(const AttentionArgs& a) {
    extern __shared__ __align__(128) uint8_t split_memory[];
    SplitMemory<HD>& my = *reinterpret_cast<SplitMemory<HD>*>(split_memory);
    launch_dependents();
    grid_dependency_wait();
    int unit = gridDim.x - 1 - blockIdx.x, kv_head = unit % a.kv_heads, warp = threadIdx.x / 32;
    Tile tile = a.tiles[unit / a.kv_heads];
    Walker<HD> w(a, tile, kv_head);
    int begin = first_split(a, w.first()), splits = w.last() / SPLIT + 1;
    float max[2] = {MASKED, MASKED}, sum[2] = {0.0f, 0.0f};
    float o[SPLIT_COLUMNS<HD>][4] = {};
#pragma unroll 1
    for (int split = begin; split < splits; split++) {
        if (split > begin) __syncthreads();
        copy_pages(my, a, tile, kv_head, split, seen_of(a, tile, split));
        SplitPart<HD> part;
        split_by_block<HD>(part, w, my, split);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (part.max[r] == MASKED) continue;
            bool is_first = max[r] == MASKED;
            Rescale f = rescale_factors(max[r], part.max[r]);
            max[r] = f.max;
            sum[r] = is_first ? part.sum[r] : __fmaf_rn(sum[r], f.old, __fmul_rn(part.sum[r], f.fresh));
#pragma unroll
            for (int c = 0; c < SPLIT_COLUMNS<HD>; c++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++)
                    o[c][i] = is_first ? part.o[c][i] : __fmaf_rn(o[c][i], f.old, __fmul_rn(part.o[c][i], f.fresh));
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t at;
        if (!w.place(r, at)) continue;
        if (a.sinks) {
            const float factor = add_sink(a, at, max[r], sum[r]);
#pragma unroll
            for (int c = 0; c < SPLIT_COLUMNS<HD>; c++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++) o[c][i] = __fmul_rn(o[c][i], factor);
        }
#pragma unroll
        for (int c = 0; c < SPLIT_COLUMNS<HD>; c++)
            *reinterpret_cast<float2*>(a.out + at * HD + 8 * (warp + c * SPLIT_WARPS) + 2 * w.lane.t) =
                make_float2(__fdiv_rn(o[c][2 * r], sum[r]), __fdiv_rn(o[c][2 * r + 1], sum[r]));
    }
}

template <int HD, int WARPS> DEVICE void attention_together(const AttentionArgs& a) {
    using Partials = BlockPartials<HD, WARPS>;
    __shared__ Partials smem;
    launch_dependents();
    grid_dependency_wait();
    // The longest rows of a prompt come last and take longest: they begin first.
    int unit = gridDim.x - 1 - blockIdx.x, warp = threadIdx.x / 32;
    Walker<HD> w(a, a.tiles[unit / a.kv_heads], unit % a.kv_heads);
    int begin = first_split(a, w.first()), splits = w.last() / SPLIT + 1;
    int row = threadIdx.x / Partials::THREADS, column = 2 * (threadIdx.x % Partials::THREADS);
    float all_max = MASKED, all_sum = 0.0f;
    float2 o[Partials::EACH] = {};
    for (int first = begin; first < splits; first += WARPS) {
        if (first > begin) __syncthreads();
        if (first + warp < splits) {
            SoftmaxState<HD> state;
            w.split(state, first + warp);
            smem.store(state, warp, w.lane);
        }
        __syncthreads();
        for (int i = 0; i < min(WARPS, splits - first); i++) {
            float max = smem.max[i][row], sum = smem.sum[i][row];
            if (max == MASKED) continue;
            bool is_first = all_max == MASKED;
            Rescale f = rescale_factors(all_max, max);
            all_max = f.max;
            all_sum = is_first ? sum : __fmaf_rn(all_sum, f.old, __fmul_rn(sum, f.fresh));
#pragma unroll
            for (int n = 0; n < Partials::EACH; n++) {
                const float* at = &smem.o[i][row][2 * Partials::THREADS * n + column];
                float2 v = *reinterpret_cast<const float2*>(at);
                o[n].x = is_first ? v.x : __fmaf_rn(o[n].x, f.old, __fmul_rn(v.x, f.fresh));
                o[n].y = is_first ? v.y : __fmaf_rn(o[n].y, f.old, __fmul_rn(v.y, f.fresh));
            }
        }
    }
    if (row >= w.tile.count) return;
    int group = a.heads / a.kv_heads, index = w.tile.first + row;
    int64_t at = int64_t(w.tile.row0 + index / group) * a.heads + w.kv_head * group + index % group;
    if (a.sinks) {
        const float factor = add_sink(a, at, all_max, all_sum);
#pragma unroll
        for (int n = 0; n < Partials::EACH; n++)
            o[n] = make_float2(__fmul_rn(o[n].x, factor), __fmul_rn(o[n].y, factor));
    }
#pragma unroll
    for (int n = 0; n < Partials::EACH; n++)
        *reinterpret_cast<float2*>(a.out + at * HD + 2 * Partials::THREADS * n + column) =
            make_float2(__fdiv_rn(o[n].x, all_sum), __fdiv_rn(o[n].y, all_sum));
}

template <int HD, int WARPS> DEVICE void attention_whole(const AttentionArgs& a) {
    if constexpr (HD < LARGE_HEAD) attention_together<HD, WARPS>(a);
    else attention_in_turn<HD>(a);
}

struct MergeArgs {
    AttentionArgs attention;
    const Row* rows;
    int n_rows, head_dim;
};
LAYOUT(MergeArgs, 112, AT(attention, 0) AT(rows, 96) AT(n_rows, 104) AT(head_dim, 108))

template <int MOST> DEVICE void merge_head(const MergeArgs& m) {
    int64_t at = int64_t(blockIdx.x) * 4 + threadIdx.x / 32;
    if (at >= int64_t(m.n_rows) * m.attention.heads) return;
    int position = m.rows[at / m.attention.heads].position;
    auto keep = [&](int i, float v) { m.attention.out[at * m.head_dim + i] = v; };
    merge_splits<MOST>(m.attention, at, first_split(m.attention, position), position, m.head_dim, keep);
}

extern "C" __global__ void __launch_bounds__(128) attention_merge(const __grid_constant__ MergeArgs m) {
    launch_dependents();
    grid_dependency_wait();
    if (m.head_dim < LARGE_HEAD) merge_head<LARGE_HEAD / 2>(m);
    else merge_head<LARGE_HEAD>(m);
}

// Of heads that are larger than LARGE_HEAD, which need more registers.
extern "C" __global__ void __launch_bounds__(128) attention_merge_largest(const __grid_constant__ MergeArgs m) {
    launch_dependents();
    grid_dependency_wait();
    merge_head<MAX_HEAD>(m);
}

// `together`: a block a unit, with as many warps as shared memory and the columns of a row are enough for
// (the host computes the same: device/cuda/attention.rs). `split`: a block a split of a unit.
#define ATTENTION(HD, WARPS)                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32)                                   \
    attention_together_##HD(const __grid_constant__ AttentionArgs a) {                         \
        attention_whole<HD, WARPS>(a);                                                         \
    }                                                                                          \
    extern "C" __global__ void __launch_bounds__(SPLIT_THREADS)                                \
    attention_split_##HD(const __grid_constant__ AttentionArgs a) {                            \
        launch_dependents();                                                                   \
        grid_dependency_wait();                                                                \
        int rest = blockIdx.x / a.splits;                                                      \
        attention_split_block<HD>(a, a.tiles[rest / a.kv_heads], rest % a.kv_heads, blockIdx.x % a.splits); \
    }
ATTENTION(16, 4) ATTENTION(32, 8) ATTENTION(64, 8) ATTENTION(96, 4) ATTENTION(128, 4) ATTENTION(256, 4) ATTENTION(512, 4)
