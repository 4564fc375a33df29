// Gated delta nets of steps with few rows of each sequence, and the inputs of all, as their own translation unit.
#include "delta_net.cuh"

constexpr int MAX_DELTA_DIM = 128;
constexpr int DELTA_INPUT_WARPS = 8;

// Convolution, SiLU and norms: a warp for each head of queries, keys and values of a row. A lane has every 32nd channel, adds
// the positions of the convolution from the present one backwards, and squares of a head are added by a butterfly.
// They go to `mixed`; inputs, keys and log decays go into the row of the unit, too.
extern "C" __global__ void __launch_bounds__(32 * DELTA_INPUT_WARPS) delta_inputs(const __grid_constant__ DeltaArgs a) {
    launch_dependents();
    grid_dependency_wait();
    const int row = blockIdx.x, lane = threadIdx.x & 31, dim = a.head_dim;
    const int head = blockIdx.y * DELTA_INPUT_WARPS + threadIdx.x / 32, v_head = head - 2 * a.k_heads;
    if (v_head >= a.v_heads) return;
    const UnitRow place(a);
    const ValueHead of_values(a, max(v_head, 0));
    const int unit = v_head < 0 ? head % a.k_heads : of_values.unit;
    const int input = (v_head < 0 ? head / a.k_heads : 2 + of_values.index) * dim;
    const int position = a.rows[row].position, slot = position % PAGE, floats = place.floats();
    const StateRow at = a.state_rows[row];
    float* block = unit_at(a.states, at.pages, unit);
    // The last inputs of the block before, if the convolution sees them and this launch has not projected them.
    const int last = min(a.kernel - 1, position);
    const bool sees_before = last > slot && last > at.before;
    const float* before = sees_before ? unit_at(a.states, at.pages - a.states.groups, unit) : block;

    float v[MAX_DELTA_DIM / 32], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_DELTA_DIM / 32; i++) {
        const int c = 32 * i + lane, channel = head * dim + c;
        v[i] = 0.0f;
        if (c >= dim) continue;
        const float* weights = a.conv + int64_t(channel) * a.kernel + a.kernel - 1;
        const float* projected = a.projected + int64_t(row) * a.stride + channel;
        block[slot * floats + input + c] = *projected;
        for (int back = 0; back <= last; back++) {
            float x;
            if (back <= at.before) x = projected[-int64_t(back) * a.stride];
            else if (back <= slot) x = block[(slot - back) * floats + input + c];
            else x = before[(PAGE + slot - back) * floats + input + c];
            v[i] = __fmaf_rn(weights[-back], x, v[i]);
        }
        v[i] = silu(v[i]);
        squares = __fmaf_rn(v[i], v[i], squares);
    }
    if (v_head < 0) {
        float inverse = rsqrtf(__fadd_rn(warp_sum(squares), a.eps));
        if (head < a.k_heads) inverse = __fmul_rn(inverse, rsqrtf(float(dim)));
#pragma unroll
        for (int i = 0; i < MAX_DELTA_DIM / 32; i++) v[i] = __fmul_rn(v[i], inverse);
    }
    float* to = a.mixed + (int64_t(row) * (2 * a.k_heads + a.v_heads) + head) * dim;
    float* key = v_head < 0 && head >= a.k_heads ? block + slot * floats + place.key() : nullptr;
#pragma unroll
    for (int i = 0; i < MAX_DELTA_DIM / 32; i++) {
        const int c = 32 * i + lane;
        if (c >= dim) continue;
        to[c] = v[i];
        if (key) key[c] = v[i];
    }
    if (v_head < 0 || lane > 0) return;
    const float* inputs = a.projected + int64_t(row) * a.stride + (2 * a.k_heads + 2 * a.v_heads) * dim;
    const float alpha = inputs[ValueHead::decay(a, v_head)];
    const float log_decay = __fmul_rn(a.decay[v_head], softplus(__fadd_rn(alpha, a.dt[v_head])));
    block[slot * floats + place.log_decay(of_values.index)] = log_decay;
}

// Columns of a head's values that a block has, at most.
constexpr int DELTA_COLUMNS = 64;
// Floats behind the rows of the other arrays in shared memory.
constexpr int UPDATE_PAD = 8;
constexpr int PRODUCT_PAD = 1;
// Arrays of a float for each position.
constexpr int DELTA_LISTS = 4;

template <int DIM> struct DeltaMemory {
    static constexpr int COLUMNS = DIM < DELTA_COLUMNS ? DIM : DELTA_COLUMNS;
    float keys[PAGE][DIM + KEY_PAD];
    float queries[PAGE][DIM + KEY_PAD];
    // Values, until they are replaced by updates.
    float updates[PAGE][COLUMNS + UPDATE_PAD];
    // d(j, i) (k[j] . k[i]) and d(j, i) (k[j] . q[i]), by i.
    float known[PAGE][PAGE + PRODUCT_PAD];
    float asked[PAGE][PAGE + PRODUCT_PAD];
    // d(-1, i), and d(j, PAGE - 1).
    float whole[PAGE];
    float ends[PAGE];
    float log_decays[PAGE];
    float strengths[PAGE];
};
// As the host computes it (device/cuda/delta_net.rs).
static_assert(sizeof(DeltaMemory<128>) == sizeof(float) * PAGE * (2 * (128 + KEY_PAD) + DELTA_COLUMNS + UPDATE_PAD
                                                                  + 2 * (PAGE + PRODUCT_PAD) + DELTA_LISTS));

// One head of values: DIM / COLUMNS blocks of threads, each with some columns of the state in registers.
template <int DIM> struct DeltaHead {
    using Memory = DeltaMemory<DIM>;
    static constexpr int COLUMNS = Memory::COLUMNS, BLOCKS = DIM / COLUMNS, THREADS = COLUMNS * DELTA_LANES;
    static constexpr int FOURS = DIM / 4 / DELTA_LANES;
    const DeltaArgs& a;
    Memory& m;
    const UnitRow place;
    const int head;
    const ValueHead of_values;
    const int part, in_block, column;
    float state[FOURS][4];

    DEVICE DeltaHead(const DeltaArgs& a, Memory& m)
        : a(a), m(m), place(a), head(blockIdx.x / BLOCKS % a.v_heads), of_values(a, head), part(threadIdx.x % DELTA_LANES),
          in_block(threadIdx.x / DELTA_LANES), column(blockIdx.x % BLOCKS * COLUMNS + in_block) {}

    // The place of the state's value at a key of this thread's, in the block of a unit.
    DEVICE float* state_at(float* block, int four, int i) const {
        const int key = 4 * (DELTA_LANES * four + part) + i;
        return block + PAGE * place.floats() + (of_values.index * DIM + key) * DIM + column;
    }

    DEVICE void clear_state() {
#pragma unroll
        for (int f = 0; f < FOURS; f++)
#pragma unroll
            for (int i = 0; i < 4; i++) state[f][i] = 0.0f;
    }

    DEVICE void load_state(float* block) {
#pragma unroll
        for (int f = 0; f < FOURS; f++)
#pragma unroll
            for (int i = 0; i < 4; i++) state[f][i] = *state_at(block, f, i);
    }

    // What rows need to shared memory: keys of all, queries and values of those to compute, updates of those before.
    DEVICE void load(const DeltaRows& rows) {
        const int width = (2 * a.k_heads + a.v_heads) * DIM, floats = place.floats();
        const float* mixed = a.mixed + int64_t(rows.row0 - rows.from) * width;
        for (int i = threadIdx.x; i < rows.to * DIM; i += THREADS) {
            const int slot = i / DIM, c = i % DIM;
            m.keys[slot][c] = rows.block[slot * floats + place.key() + c];
            if (slot >= rows.from) m.queries[slot][c] = mixed[int64_t(slot) * width + of_values.unit * DIM + c];
        }
        for (int i = threadIdx.x; i < rows.to * COLUMNS; i += THREADS) {
            const int slot = i / COLUMNS, c = i % COLUMNS, of_head = blockIdx.x % BLOCKS * COLUMNS + c;
            m.updates[slot][c] = slot < rows.from
                ? rows.block[slot * floats + place.update(of_values.index) + of_head]
                : mixed[int64_t(slot) * width + (2 * a.k_heads + head) * DIM + of_head];
        }
        const int slot = threadIdx.x;
        if (slot >= rows.to) return;
        m.log_decays[slot] = rows.block[slot * floats + place.log_decay(of_values.index)];
        if (slot < rows.from) return;
        const int64_t row = rows.row0 + slot - rows.from;
        const float* inputs = a.projected + row * a.stride + (2 * a.k_heads + 2 * a.v_heads) * DIM;
        m.strengths[slot] = sigmoid(inputs[ValueHead::strength(a, head)]);
    }

    // Products of keys with keys and queries, and decays: a warp has SLOTS rows at a time, a lane one of the rows before them.
    template <int SLOTS> DEVICE void multiply(const DeltaRows& rows) {
        const int lane = threadIdx.x & 31;
        const float own = m.log_decays[min(lane, rows.to - 1)];
        for (int first = rows.from + threadIdx.x / 32 * SLOTS; first < rows.to; first += THREADS / 32 * SLOTS) {
            float known[SLOTS] = {}, asked[SLOTS] = {}, decays[SLOTS] = {};
            multiply_keys<DIM>(m.keys, m.queries, first, rows.to, known, asked);
            add_decays(own, first, rows.to, decays);
#pragma unroll
            for (int s = 0; s < SLOTS; s++) {
                const int slot = first + s;
                if (slot >= rows.to) break;
                const float decay = expf(decays[s]);
                if (lane == PAGE - 1) m.whole[slot] = decay;
                if (lane < slot) {
                    m.known[slot][lane] = __fmul_rn(decay, known[s]);
                    m.asked[slot][lane] = __fmul_rn(decay, asked[s]);
                }
                if (lane == slot) m.asked[slot][lane] = asked[s];
                if (slot == PAGE - 1) m.ends[lane] = lane == slot ? 1.0f : decay;
            }
        }
    }

    // This thread's part of what the state holds under a key or query.
    DEVICE float read(const float* by) const {
        float sums[4] = {};
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            const float4 x = *reinterpret_cast<const float4*>(by + 4 * (DELTA_LANES * f + part));
            sums[0] = __fmaf_rn(state[f][0], x.x, sums[0]);
            sums[1] = __fmaf_rn(state[f][1], x.y, sums[1]);
            sums[2] = __fmaf_rn(state[f][2], x.z, sums[2]);
            sums[3] = __fmaf_rn(state[f][3], x.w, sums[3]);
        }
        return __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
    }

    // The rows one after the other: the thread that is to read an update has written it.
    DEVICE void walk(const DeltaRows& rows) {
        for (int slot = rows.from; slot < rows.to; slot++) {
            const float whole = m.whole[slot], value = m.updates[slot][in_block];
            float known = __fmul_rn(whole, read(m.keys[slot])), given = __fmul_rn(whole, read(m.queries[slot]));
            for (int j = part; j < slot; j += DELTA_LANES) {
                const float update = m.updates[j][in_block];
                known = __fmaf_rn(m.known[slot][j], update, known);
                given = __fmaf_rn(m.asked[slot][j], update, given);
            }
            known = sum_of_column(known);
            given = sum_of_column(given);
            const float update = __fmul_rn(m.strengths[slot], __fsub_rn(value, known));
            if (part != slot % DELTA_LANES) continue;
            m.updates[slot][in_block] = update;
            rows.block[slot * place.floats() + place.update(of_values.index) + column] = update;
            const int64_t row = rows.row0 + slot - rows.from;
            a.out[(row * a.v_heads + head) * DIM + column] = __fmaf_rn(m.asked[slot][slot], update, given);
        }
    }

    // The state at the end of the block.
    DEVICE void end_block(float* block) {
        __syncwarp();
        const float whole = m.whole[PAGE - 1];
#pragma unroll
        for (int f = 0; f < FOURS; f++)
#pragma unroll
            for (int i = 0; i < 4; i++) state[f][i] = __fmul_rn(whole, state[f][i]);
#pragma unroll 2
        for (int j = 0; j < PAGE; j++) {
            const float update = __fmul_rn(m.ends[j], m.updates[j][in_block]);
#pragma unroll
            for (int f = 0; f < FOURS; f++) {
                const float4 key = *reinterpret_cast<const float4*>(&m.keys[j][4 * (DELTA_LANES * f + part)]);
                state[f][0] = __fmaf_rn(key.x, update, state[f][0]);
                state[f][1] = __fmaf_rn(key.y, update, state[f][1]);
                state[f][2] = __fmaf_rn(key.z, update, state[f][2]);
                state[f][3] = __fmaf_rn(key.w, update, state[f][3]);
            }
        }
#pragma unroll
        for (int f = 0; f < FOURS; f++)
#pragma unroll
            for (int i = 0; i < 4; i++) *state_at(block, f, i) = state[f][i];
    }

    DEVICE void run() {
        const StateSequence sequence = a.sequences[blockIdx.x / (BLOCKS * a.v_heads)];
        const int end = sequence.position0 + sequence.rows;
        if (sequence.position0 < PAGE) clear_state();
        else load_state(unit_at(a.states, sequence.pages - a.states.groups, of_values.unit));
        for (int position = sequence.position0; position < end;) {
            const DeltaRows rows = rows_from(a, sequence, position, of_values.unit);
            load(rows);
            __syncthreads();
            if (rows.to - rows.from == 1) multiply<1>(rows);
            else multiply<4>(rows);
            __syncthreads();
            walk(rows);
            if (rows.to == PAGE) end_block(rows.block);
            position += rows.to - rows.from;
            __syncthreads();
        }
    }
};

// The recurrence and its outputs: for each sequence and head of values, DIM / 64 blocks, or one.
template <int DIM> DEVICE void delta_net(const DeltaArgs& a) {
    extern __shared__ float4 shared[];
    launch_dependents();
    grid_dependency_wait();
    DeltaHead<DIM>(a, *reinterpret_cast<DeltaMemory<DIM>*>(shared)).run();
}

#define DELTA_NET(DIM)                                                                   \
    extern "C" __global__ void __launch_bounds__(DeltaHead<DIM>::THREADS)               \
    delta_net_##DIM(const __grid_constant__ DeltaArgs a) { delta_net<DIM>(a); }
DELTA_NET(16)
DELTA_NET(32)
DELTA_NET(64)
DELTA_NET(128)
