// Gated delta nets of steps with long prompts, as their own translation unit. Results have the bits of delta_net.cu: the order of
// additions is the same, and what does not depend on updates is computed in front of the walk over the rows.
#include "copies.cuh"
#include "delta_net.cuh"

// Rows that a warp multiplies at a time, and warps of a block.
constexpr int PRODUCT_SLOTS = 4;
constexpr int PRODUCT_WARPS = PAGE / PRODUCT_SLOTS;

template <int DIM> struct ProductsMemory {
    float keys[PAGE][DIM + KEY_PAD];
    float queries[PAGE][DIM + KEY_PAD];
};
// As the host computes it (device/cuda/delta_net.rs).
static_assert(sizeof(ProductsMemory<128>) == sizeof(float) * PAGE * 2 * (128 + KEY_PAD));

// Products of keys with keys and queries, times decays, of the rows of a sequence in a block of positions, for all heads of a
// unit. In place of a product of the last key, which no row is behind, there is the decay from the beginning of the block.
template <int DIM> DEVICE void delta_products(const DeltaArgs& a) {
    extern __shared__ float4 shared[];
    auto& m = *reinterpret_cast<ProductsMemory<DIM>*>(shared);
    launch_dependents();
    grid_dependency_wait();
    const StateSequence sequence = a.sequences[blockIdx.x / a.pieces];
    const int end = sequence.position0 + sequence.rows, unit = blockIdx.y;
    const int piece = (sequence.position0 / PAGE + blockIdx.x % a.pieces) * PAGE;
    if (piece >= end) return;
    const DeltaRows rows = rows_from(a, sequence, max(piece, sequence.position0), unit);
    const UnitRow place(a);
    const int width = (2 * a.k_heads + a.v_heads) * DIM, floats = place.floats();
    const float* mixed = a.mixed + int64_t(rows.row0 - rows.from) * width + unit * DIM;
    for (int i = threadIdx.x; i < rows.to * DIM; i += 32 * PRODUCT_WARPS) {
        const int slot = i / DIM, c = i % DIM;
        m.keys[slot][c] = rows.block[slot * floats + place.key() + c];
        if (slot >= rows.from) m.queries[slot][c] = mixed[int64_t(slot) * width + c];
    }
    __syncthreads();
    const int lane = threadIdx.x & 31, first = threadIdx.x / 32 * PRODUCT_SLOTS;
    if (first + PRODUCT_SLOTS <= rows.from || first >= rows.to) return;
    float known[PRODUCT_SLOTS] = {}, asked[PRODUCT_SLOTS] = {};
    multiply_keys<DIM>(m.keys, m.queries, first, rows.to, known, asked);
    for (int index = 0; index < place.v_heads; index++) {
        const int head = a.grouped ? unit * a.grouped + index : unit + index * a.k_heads;
        float decays[PRODUCT_SLOTS] = {};
        add_decays(rows.block[min(lane, rows.to - 1) * floats + place.log_decay(index)], first, rows.to, decays);
#pragma unroll
        for (int s = 0; s < PRODUCT_SLOTS; s++) {
            const int slot = first + s;
            if (slot < rows.from || slot >= rows.to) continue;
            const float decay = expf(decays[s]);
            float* to = a.products + (int64_t(rows.row0 + slot - rows.from) * a.v_heads + head) * 2 * PAGE;
            to[lane] = lane == PAGE - 1 ? decay : __fmul_rn(decay, known[s]);
            to[PAGE + lane] = lane == slot ? asked[s] : __fmul_rn(decay, asked[s]);
        }
    }
}

// Columns of a head's values that a block has, at most, and those of a thread.
constexpr int PROMPT_COLUMNS = 32;
constexpr int PROMPT_EACH = 2;
// Floats behind the rows of the other arrays in shared memory.
constexpr int VALUE_PAD = 8;
constexpr int PRODUCTS_PAD = 4;
// Blocks of positions in shared memory: one that is computed, and the next.
constexpr int PROMPT_STAGES = 2;

template <int DIM> struct PromptMemory {
    static constexpr int COLUMNS = DIM < PROMPT_COLUMNS ? DIM : PROMPT_COLUMNS;
    float keys[PAGE][DIM + KEY_PAD];
    float queries[PAGE][DIM + KEY_PAD];
    // Values, until they are replaced by updates.
    float updates[PAGE][COLUMNS + VALUE_PAD];
    float known[PAGE][PAGE + PRODUCTS_PAD];
    float asked[PAGE][PAGE + PRODUCTS_PAD];
};
// As the host computes it (device/cuda/delta_net.rs).
static_assert(sizeof(PromptMemory<128>) == sizeof(float) * PAGE * (2 * (128 + KEY_PAD) + PROMPT_COLUMNS + VALUE_PAD
                                                                   + 2 * (PAGE + PRODUCTS_PAD)));

// One head of values: DIM / COLUMNS blocks of threads, each with some columns of the state in registers, two for a thread.
// Warps share nothing but what they read, and the threads of a column its updates. Loops are not unrolled further than here: all
// of their code has to fit into the instruction caches, which a few warps leave waiting otherwise.
template <int DIM> struct DeltaPrompt {
    using Memory = PromptMemory<DIM>;
    static constexpr int COLUMNS = Memory::COLUMNS, BLOCKS = DIM / COLUMNS, THREADS = COLUMNS / PROMPT_EACH * DELTA_LANES;
    static constexpr int FOURS = DIM / 4 / DELTA_LANES;
    const DeltaArgs& a;
    Memory* const stages;
    const UnitRow place;
    const int head;
    const ValueHead of_values;
    // The first of this thread's columns in the block, and in the head.
    const int part, in_block, column;
    float state[PROMPT_EACH][FOURS][4];

    DEVICE DeltaPrompt(const DeltaArgs& a, Memory* stages)
        : a(a), stages(stages), place(a), head(blockIdx.x / BLOCKS % a.v_heads), of_values(a, head),
          part(threadIdx.x % DELTA_LANES), in_block(threadIdx.x / DELTA_LANES * PROMPT_EACH),
          column(blockIdx.x % BLOCKS * COLUMNS + in_block) {}

    // The place of the state's values at a key of this thread's, in the block of a unit.
    DEVICE float2* state_at(float* block, int four, int i) const {
        const int key = 4 * (DELTA_LANES * four + part) + i;
        return reinterpret_cast<float2*>(block + PAGE * place.floats() + (of_values.index * DIM + key) * DIM + column);
    }

    DEVICE void load_state(float* block) {
#pragma unroll
        for (int f = 0; f < FOURS; f++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 v = block ? *state_at(block, f, i) : float2{0.0f, 0.0f};
                state[0][f][i] = v.x;
                state[1][f][i] = v.y;
            }
    }

    // Begins to copy what rows need, but for keys and updates of those before.
    DEVICE void fetch(const DeltaRows& rows, Memory& m) const {
        const int heads = 2 * a.k_heads + a.v_heads, count = rows.to - rows.from;
        auto copy = [&](float* to, int pitch, const float* from, int64_t stride, int floats) {
            for (int i = threadIdx.x; i < count * floats / 4; i += THREADS) {
                const int row = i / (floats / 4), c = i % (floats / 4) * 4;
                copy_async(to + (rows.from + row) * pitch + c, from + row * stride + c, true);
            }
        };
        const float* mixed = a.mixed + int64_t(rows.row0) * heads * DIM;
        const int unit = of_values.unit, first = blockIdx.x % BLOCKS * COLUMNS;
        copy(m.queries[0], DIM + KEY_PAD, mixed + unit * DIM, heads * DIM, DIM);
        copy(m.keys[0], DIM + KEY_PAD, mixed + (a.k_heads + unit) * DIM, heads * DIM, DIM);
        copy(m.updates[0], COLUMNS + VALUE_PAD, mixed + (2 * a.k_heads + head) * DIM + first, heads * DIM, COLUMNS);
        const float* products = a.products + (int64_t(rows.row0) * a.v_heads + head) * 2 * PAGE;
        copy(m.known[0], PAGE + PRODUCTS_PAD, products, a.v_heads * 2 * PAGE, PAGE);
        copy(m.asked[0], PAGE + PRODUCTS_PAD, products + PAGE, a.v_heads * 2 * PAGE, PAGE);
        copies_done();
    }

    // Keys and updates of the rows before the first one of this launch.
    DEVICE void load_before(const DeltaRows& rows, Memory& m) const {
        for (int i = threadIdx.x; i < rows.from * DIM; i += THREADS)
            m.keys[i / DIM][i % DIM] = rows.block[i / DIM * place.floats() + place.key() + i % DIM];
        const int first = blockIdx.x % BLOCKS * COLUMNS;
        for (int i = threadIdx.x; i < rows.from * COLUMNS; i += THREADS) {
            const int slot = i / COLUMNS, c = i % COLUMNS;
            m.updates[slot][c] = rows.block[slot * place.floats() + place.update(of_values.index) + first + c];
        }
    }

    // This thread's part of what the state holds under a key or query, in each column.
    DEVICE void read(const float* by, float (&out)[PROMPT_EACH]) const {
        float sums[PROMPT_EACH][4] = {};
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            const float4 x = *reinterpret_cast<const float4*>(by + 4 * (DELTA_LANES * f + part));
#pragma unroll
            for (int e = 0; e < PROMPT_EACH; e++) {
                sums[e][0] = __fmaf_rn(state[e][f][0], x.x, sums[e][0]);
                sums[e][1] = __fmaf_rn(state[e][f][1], x.y, sums[e][1]);
                sums[e][2] = __fmaf_rn(state[e][f][2], x.z, sums[e][2]);
                sums[e][3] = __fmaf_rn(state[e][f][3], x.w, sums[e][3]);
            }
        }
#pragma unroll
        for (int e = 0; e < PROMPT_EACH; e++)
            out[e] = __fadd_rn(__fadd_rn(sums[e][0], sums[e][1]), __fadd_rn(sums[e][2], sums[e][3]));
    }

    // The updates of a row in this thread's columns.
    DEVICE float2 updates_of(const Memory& m, int slot) const {
        return *reinterpret_cast<const float2*>(&m.updates[slot][in_block]);
    }

    // Adds the update of row `from` to what row `slot` finds.
    DEVICE static void add_row(const Memory& m, int slot, int from, const float2& update, float (&known)[PROMPT_EACH],
                               float (&given)[PROMPT_EACH]) {
        const float by_key = m.known[slot][from], by_query = m.asked[slot][from];
        known[0] = __fmaf_rn(by_key, update.x, known[0]);
        known[1] = __fmaf_rn(by_key, update.y, known[1]);
        given[0] = __fmaf_rn(by_query, update.x, given[0]);
        given[1] = __fmaf_rn(by_query, update.y, given[1]);
    }

    // Rows `first` .. `first` + 3: what the state and earlier rows hold of all, then one after the other.
    DEVICE void walk(const DeltaRows& rows, Memory& m, int first, float strength) const {
        float known[DELTA_LANES][PROMPT_EACH], given[DELTA_LANES][PROMPT_EACH];
#pragma unroll
        for (int r = 0; r < DELTA_LANES; r++) {
            const float whole = m.known[first + r][PAGE - 1];
            read(m.keys[first + r], known[r]);
            read(m.queries[first + r], given[r]);
#pragma unroll
            for (int e = 0; e < PROMPT_EACH; e++) {
                known[r][e] = __fmul_rn(whole, known[r][e]);
                given[r][e] = __fmul_rn(whole, given[r][e]);
            }
        }
#pragma unroll 1
        for (int from = part; from < first; from += DELTA_LANES) {
            const float2 update = updates_of(m, from);
#pragma unroll
            for (int r = 0; r < DELTA_LANES; r++) add_row(m, first + r, from, update, known[r], given[r]);
        }
        // Of this thread's row among the four; if it is of this launch, it has its value only so far.
        float2 own = updates_of(m, first + part);
#pragma unroll
        for (int r = 0; r < DELTA_LANES; r++) {
            const int slot = first + r;
            if (part < r) add_row(m, slot, first + part, own, known[r], given[r]);
            const float2 pair = updates_of(m, slot);
            const float values[PROMPT_EACH] = {pair.x, pair.y}, strength_of_row = __shfl_sync(~0u, strength, slot);
            float update[PROMPT_EACH], sum[PROMPT_EACH];
#pragma unroll
            for (int e = 0; e < PROMPT_EACH; e++) {
                update[e] = __fmul_rn(strength_of_row, __fsub_rn(values[e], sum_of_column(known[r][e])));
                sum[e] = sum_of_column(given[r][e]);
            }
            if (part != r || slot < rows.from || slot >= rows.to) continue;
            own = {update[0], update[1]};
            const int64_t row = rows.row0 + slot - rows.from;
            const float asked = m.asked[slot][slot];
            float* kept = rows.block + slot * place.floats() + place.update(of_values.index) + column;
            float* out = a.out + (row * a.v_heads + head) * DIM + column;
#pragma unroll
            for (int e = 0; e < PROMPT_EACH; e++) {
                kept[e] = update[e];
                out[e] = __fmaf_rn(asked, update[e], sum[e]);
            }
        }
        // All threads of a column have read the values.
        __syncwarp();
        if (first + part >= rows.from) *reinterpret_cast<float2*>(&m.updates[first + part][in_block]) = own;
        __syncwarp();
    }

    // The state at the end of the block. `own`: the logarithm of the decay of this lane's row.
    DEVICE void end_block(const DeltaRows& rows, const Memory& m, float own) {
        const int lane = threadIdx.x & 31;
        float decays[1] = {};
        add_decays(own, PAGE - 1, PAGE, decays);
        const float ends = lane == PAGE - 1 ? 1.0f : expf(decays[0]), whole = m.known[PAGE - 1][PAGE - 1];
#pragma unroll
        for (int e = 0; e < PROMPT_EACH; e++)
#pragma unroll
            for (int f = 0; f < FOURS; f++)
#pragma unroll
                for (int i = 0; i < 4; i++) state[e][f][i] = __fmul_rn(whole, state[e][f][i]);
#pragma unroll 2
        for (int j = 0; j < PAGE; j++) {
            const float end = __shfl_sync(~0u, ends, j);
            const float2 pair = updates_of(m, j);
            const float update[PROMPT_EACH] = {__fmul_rn(end, pair.x), __fmul_rn(end, pair.y)};
#pragma unroll
            for (int f = 0; f < FOURS; f++) {
                const float4 key = *reinterpret_cast<const float4*>(&m.keys[j][4 * (DELTA_LANES * f + part)]);
#pragma unroll
                for (int e = 0; e < PROMPT_EACH; e++) {
                    state[e][f][0] = __fmaf_rn(key.x, update[e], state[e][f][0]);
                    state[e][f][1] = __fmaf_rn(key.y, update[e], state[e][f][1]);
                    state[e][f][2] = __fmaf_rn(key.z, update[e], state[e][f][2]);
                    state[e][f][3] = __fmaf_rn(key.w, update[e], state[e][f][3]);
                }
            }
        }
#pragma unroll
        for (int f = 0; f < FOURS; f++)
#pragma unroll
            for (int i = 0; i < 4; i++) *state_at(rows.block, f, i) = {state[0][f][i], state[1][f][i]};
    }

    // The strength of this lane's row, and the logarithm of its decay.
    DEVICE float2 strength_and_decay(const DeltaRows& rows) const {
        const int slot = min(int(threadIdx.x & 31), rows.to - 1);
        const int64_t row = rows.row0 + max(slot, rows.from) - rows.from;
        const float* inputs = a.projected + row * a.stride + (2 * a.k_heads + 2 * a.v_heads) * DIM;
        return {inputs[ValueHead::strength(a, head)],
                rows.block[slot * place.floats() + place.log_decay(of_values.index)]};
    }

    DEVICE void run() {
        const StateSequence sequence = a.sequences[blockIdx.x / (BLOCKS * a.v_heads)];
        const int end = sequence.position0 + sequence.rows, unit = of_values.unit;
        load_state(sequence.position0 < PAGE ? nullptr : unit_at(a.states, sequence.pages - a.states.groups, unit));
        DeltaRows rows = rows_from(a, sequence, sequence.position0, unit);
        fetch(rows, stages[0]);
        load_before(rows, stages[0]);
        float2 row = strength_and_decay(rows);
        for (int position = sequence.position0, stage = 0;; stage = (stage + 1) % PROMPT_STAGES) {
            position += rows.to - rows.from;
            Memory& m = stages[stage];
            DeltaRows next = rows;
            float2 next_row = row;
            // This stage's copies have come, and no thread reads the other stage any more.
            wait_copies<0>();
            __syncthreads();
            if (position < end) {
                next = rows_from(a, sequence, position, unit);
                fetch(next, stages[(stage + 1) % PROMPT_STAGES]);
                next_row = strength_and_decay(next);
            }
            const float strength = sigmoid(row.x);
#pragma unroll 1
            for (int first = rows.from / DELTA_LANES * DELTA_LANES; first < rows.to; first += DELTA_LANES)
                walk(rows, m, first, strength);
            if (rows.to == PAGE) end_block(rows, m, row.y);
            if (position == end) return;
            rows = next;
            row = next_row;
        }
    }
};

template <int DIM> DEVICE void delta_prompt(const DeltaArgs& a) {
    extern __shared__ float4 shared[];
    launch_dependents();
    grid_dependency_wait();
    DeltaPrompt<DIM>(a, reinterpret_cast<PromptMemory<DIM>*>(shared)).run();
}

// For each sequence and head of values DIM / 32 blocks, or one, behind the products: a block for each unit and block of positions.
#define DELTA_PROMPT(DIM)                                                                \
    extern "C" __global__ void __launch_bounds__(32 * PRODUCT_WARPS)                    \
    delta_products_##DIM(const __grid_constant__ DeltaArgs a) { delta_products<DIM>(a); } \
    extern "C" __global__ void __launch_bounds__(DeltaPrompt<DIM>::THREADS)             \
    delta_prompt_##DIM(const __grid_constant__ DeltaArgs a) { delta_prompt<DIM>(a); }
DELTA_PROMPT(16)
DELTA_PROMPT(32)
DELTA_PROMPT(64)
DELTA_PROMPT(128)
