// Attention of prompts on Hopper, with the bits of attention.cuh.
//
// A block has 128 (token, query head) rows of one sequence and one key-value head, and walks their splits. Each of
// two warpgroups has 64 rows; a third one copies pages, some splits ahead, into rings of keys and of values. Pages
// lie as wgmma wants its right operand: of values a page is copied as it is, of keys each piece of 8 dims, so that
// the pieces of a split's four pages lie behind each other and one instruction multiplies all its keys.
//
// Lanes have the scores where mma.sync has them, so maxima, exponentials and sums are added as by one warp there,
// and exponentials become the left operand of the second product without leaving their lane. A split's output
// begins from nothing and is merged into the rows' own, as the law wants.
//
// A warpgroup asks for a split's output a page at a time, while it computes the exponentials of the next page, and
// then for the scores of the next split, under which it merges. Nothing makes the two warpgroups take turns: in an
// earlier order of the same steps turns were slower (bench/results/cuda.md).
#include "attention.cuh"
#include "hopper.cuh"

constexpr int WIDE_ROWS = 128;
constexpr int WIDE_THREADS = 384;
// Splits of keys, and of values, that are in the rings at a time.
constexpr int WIDE_STAGES = 3;

#ifdef HAS_WGMMA
// Registers of a thread of the warpgroup that copies and of those that multiply; the launch gives each 168.
constexpr int PAGER_REGISTERS = 24, ATTENDER_REGISTERS = 240;
static_assert(PAGER_REGISTERS + 2 * ATTENDER_REGISTERS == 3 * 168);

constexpr int GROUP_ROWS = 64;         // of a warpgroup
constexpr int GROUP_THREADS = 128;
constexpr int ROWS_BYTES = PIECE * 2;  // a piece of one row, key or dim

// A block's shared memory.
template <int HD> struct WideMemory {
    __half q[2][HD / PIECE][GROUP_ROWS][PIECE];
    __half keys[WIDE_STAGES][HD / PIECE][SPLIT][PIECE];
    __half values[WIDE_STAGES][SPLIT / PIECE][HD][PIECE];
    uint64_t keys_full[WIDE_STAGES], keys_empty[WIDE_STAGES], values_full[WIDE_STAGES], values_empty[WIDE_STAGES];
};

// As the host computes it (device/cuda/attention.rs).
static_assert(sizeof(WideMemory<MAX_HEAD>) ==
              (WIDE_ROWS + WIDE_STAGES * 2 * SPLIT) * MAX_HEAD * 2 + WIDE_STAGES * 4 * BARRIER_BYTES);

// A place in a ring, of which the barriers begin at `barriers`.
struct RingPlace {
    int stage = 0;
    uint32_t parity = 0;

    DEVICE void advance() {
        if (++stage == WIDE_STAGES) stage = 0, parity ^= 1;
    }
    DEVICE Shared of(Shared barriers) const { return barriers + stage * BARRIER_BYTES; }
    DEVICE void await_full(Shared barriers) const { barrier_wait(of(barriers), parity); }
    DEVICE void await_empty(Shared barriers) const { barrier_wait(of(barriers), parity ^ 1); }
};

// Where everything lies in shared memory.
template <int HD> struct WidePlaces {
    using Memory = WideMemory<HD>;
    static constexpr int STAGE_BYTES = SPLIT * HD * 2;
    Shared at;

    DEVICE Shared q(int warpgroup) const { return at + warpgroup * GROUP_ROWS * HD * 2; }
    DEVICE Shared keys(int stage) const { return at + offsetof(Memory, keys) + stage * STAGE_BYTES; }
    DEVICE Shared values(int stage) const { return at + offsetof(Memory, values) + stage * STAGE_BYTES; }
    DEVICE Shared keys_full() const { return at + offsetof(Memory, keys_full); }
    DEVICE Shared keys_empty() const { return at + offsetof(Memory, keys_empty); }
    DEVICE Shared values_full() const { return at + offsetof(Memory, values_full); }
    DEVICE Shared values_empty() const { return at + offsetof(Memory, values_empty); }

    // A page's warp fills a stage, and each warp that multiplies empties it.
    DEVICE void init_barriers() const {
        for (int i = 0; i < WIDE_STAGES; i++) {
            barrier_init(keys_full() + i * BARRIER_BYTES, SPLIT_PAGES);
            barrier_init(values_full() + i * BARRIER_BYTES, SPLIT_PAGES);
            barrier_init(keys_empty() + i * BARRIER_BYTES, 2 * GROUP_THREADS / 32);
            barrier_init(values_empty() + i * BARRIER_BYTES, 2 * GROUP_THREADS / 32);
        }
        fence_barrier_init();
    }
};

// A tile and its key-value head; of a layer that sees all, or only what is near.
template <int HD, bool NEAR> struct WideUnit {
    const AttentionArgs& a;
    WidePlaces<HD> memory;
    Tile tile;
    int kv_head, group;
    Lane lane;

    DEVICE WideUnit(const AttentionArgs& args, int unit, Shared at)
        : a(args), memory{at}, tile(args.tiles[unit / args.kv_heads]), kv_head(unit % args.kv_heads),
          group(args.heads / args.kv_heads) {}

    // Position of a row of the tile.
    DEVICE int position_of(int row) const { return tile.position0 + (tile.first + row) / group; }
    DEVICE int last() const { return position_of(tile.count - 1); }
    DEVICE int splits() const { return last() / SPLIT + 1; }
    // The first split of which a row sees anything.
    DEVICE int begin() const { return NEAR ? first_split(a, position_of(0)) : 0; }
    // Batch row and head of a row of the tile.
    DEVICE int64_t place(int row) const {
        int index = tile.first + row, token = index / group;
        return int64_t(tile.row0 + token) * a.heads + kv_head * group + index - token * group;
    }
};

// === the warpgroup that copies: of each split, a page a warp

template <int HD, bool NEAR> struct Pager : WideUnit<HD, NEAR> {
    using Unit = WideUnit<HD, NEAR>;
    using Unit::Unit, Unit::a, Unit::memory, Unit::kv_head, Unit::lane;
    static constexpr int PAGE_BYTES = PAGE * HD * 2;

    DEVICE void run() const {
        RingPlace place;
        int q = threadIdx.x / 32 % SPLIT_PAGES, splits = this->splits(), last = this->last();
        const int* pages = a.kv.tables + this->tile.table + q;
#pragma unroll 1
        for (int s = this->begin(); s < splits; s++, place.advance()) {
            int seen = min(max(last - s * SPLIT - q * PAGE + 1, 0), PAGE);
            int page = seen > 0 ? pages[s * SPLIT_PAGES] : 0;
            place.await_empty(memory.keys_empty());
            if (elect_lane()) copy_keys(page, seen > 0, memory.keys(place.stage) + q * PAGE * ROWS_BYTES,
                                        place.of(memory.keys_full()));
            __syncwarp();
            place.await_empty(memory.values_empty());
            copy_values(page, seen, memory.values(place.stage) + q * PAGE_BYTES, place.of(memory.values_full()));
        }
    }

    DEVICE void copy_keys(int page, bool is_there, Shared to, Shared full) const {
        if (!is_there) return barrier_arrive(full);
        barrier_expect(full, PAGE_BYTES);
        const __half* from = key_at(a.kv, page, kv_head, HD);
#pragma unroll
        for (int i = 0; i < HD / PIECE; i++)
            copy_bulk(to + i * SPLIT * ROWS_BYTES, from + key_piece(i, 0), PAGE * ROWS_BYTES, full);
    }

    // Steps of 16 positions that no row sees become zeros: what lies there might be no numbers, and an
    // exponential of zero does not hide that.
    DEVICE void copy_values(int page, int seen, Shared to, Shared full) const {
        int bytes = (seen + 15) / 16 * 16 * HD * 2;
        if (bytes < PAGE_BYTES) {
            for (int i = bytes + 16 * lane.id; i < PAGE_BYTES; i += 16 * 32)
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to + i), "r"(0) : "memory");
            fence_stores();
            __syncwarp();
        }
        if (elect_lane()) {
            if (bytes > 0) {
                barrier_expect(full, bytes);
                copy_bulk(to, value_at(a.kv, page, kv_head, a.kv_heads, HD), bytes, full);
            } else {
                barrier_arrive(full);
            }
        }
        __syncwarp();
    }
};

// === the warpgroups that multiply

template <int HD, bool NEAR> struct Attender : WideUnit<HD, NEAR> {
    using Unit = WideUnit<HD, NEAR>;
    using Unit::Unit, Unit::a, Unit::memory, Unit::tile, Unit::lane;
    using Scores = float[SPLIT / 2];
    // Exponentials, as wgmma has its left operand: of a step of 16 keys, rows g and g + 8 at 2t, and at 2t + 8.
    using Exponentials = uint32_t[SPLIT / 16][4];

    // A lane's rows g and g + 8 of its warp, and what they have so far. The first split is merged into a maximum
    // of MASKED and -0, which leaves it as it is.
    struct Rows {
        int position[2];
        float max[2], sum[2];
        float o[HD / 2];
    };

    // The factors of a split's merge, for the lane's rows.
    struct Factors {
        float old[2], fresh[2];
    };

    DEVICE int warpgroup() const { return threadIdx.x / GROUP_THREADS; }
    DEVICE int first_row() const { return GROUP_ROWS * warpgroup(); }
    DEVICE int row(int r) const { return first_row() + threadIdx.x / 32 % 4 * 16 + lane.g + 8 * r; }

    // The warpgroup's queries. Rows past the end have what lies there; nobody gets what comes of it.
    DEVICE void load_queries() const {
        int thread = threadIdx.x % GROUP_THREADS, r = thread / 32 * 16 + thread % 16;
        if (first_row() + r < tile.count) {
            const __half* from = a.q + this->place(first_row() + r) * HD;
#pragma unroll
            for (int i = thread % 32 / 16; i < HD / PIECE; i += 2) {
                uint4 v = *reinterpret_cast<const uint4*>(from + i * PIECE);
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                                 memory.q(warpgroup()) + (i * GROUP_ROWS + r) * ROWS_BYTES),
                             "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
            }
        }
        fence_stores();
        // All warps of the warpgroup have stored theirs.
        asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup()), "n"(GROUP_THREADS) : "memory");
    }

    // Asks for the scores of a split.
    DEVICE void multiply_keys(Scores& s, int stage) const {
        uint64_t queries = wgmma_operand(memory.q(warpgroup()), 8 * ROWS_BYTES, GROUP_ROWS * ROWS_BYTES);
        uint64_t keys = wgmma_operand(memory.keys(stage), 8 * ROWS_BYTES, SPLIT * ROWS_BYTES);
        wgmma_shared_fresh(s, queries, keys);
#pragma unroll
        for (int k = 1; k < HD / 16; k++)
            // A step of 16 dims is two pieces, in units of 16 bytes.
            wgmma_shared(s, queries + k * 2 * GROUP_ROWS, keys + k * 2 * SPLIT);
        wgmma_commit();
    }

    DEVICE void release(Shared empty) const { barrier_arrive_if(lane.id == 0, empty); }

    DEVICE void mask(Scores& s, const Rows& rows, int start) const {
        bool is_behind = start + SPLIT - 1 <= this->position_of(first_row());
        if (is_behind && (!NEAR || this->position_of(first_row() + GROUP_ROWS - 1) - start < a.window)) return;
#pragma unroll
        for (int n = 0; n < SPLIT / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int key = start + 8 * n + 2 * lane.t + (i & 1), position = rows.position[i >> 1];
                if (NEAR ? !sees(a, position, key) : key > position) s[4 * n + i] = MASKED;
            }
    }

    // Of the lane's rows: the largest score of a split, to which its exponentials are relative, and the merge.
    struct Largest {
        float base[2];
        Factors merge;
    };
    DEVICE Largest largest_of(const Scores& s, Rows& rows) const {
        Largest l;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            // Multiplication by the scale keeps order, so the largest is found before it.
            float even = MASKED, odd = MASKED;
#pragma unroll
            for (int n = 0; n < SPLIT / 8; n++) {
                even = fmaxf(even, s[4 * n + 2 * r]);
                odd = fmaxf(odd, s[4 * n + 2 * r + 1]);
            }
            float max = fmaxf(even, odd);
            max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
            max = __fmul_rn(fmaxf(max, __shfl_xor_sync(~0u, max, 2)), a.scale);
            Rescale to = rescale_factors(rows.max[r], max);
            l.base[r] = max;
            // A split that a row does not see leaves what it has, also where that is nothing yet, and its zeros' signs.
            l.merge.old[r] = NEAR && max == MASKED ? 1.0f : to.old;
            l.merge.fresh[r] = max == MASKED ? -0.0f : to.fresh;
            rows.max[r] = to.max;
        }
        return l;
    }

    // Computes a split's exponentials and asks for its output, a page at a time: while the tensor cores have one
    // page, the next one's exponentials are computed. Gives the lane's sums.
    DEVICE void attend(const Scores& s, const Largest& l, Exponentials& p, float (&o)[HD / 2], float (&all)[2],
                       int stage) const {
        constexpr int PAGE_NS = PAGE / 8;
        uint64_t values = wgmma_operand(memory.values(stage), 8 * ROWS_BYTES, HD * ROWS_BYTES);
#pragma unroll
        for (int q = 0; q < SPLIT_PAGES; q++) {
            float sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int n = q * PAGE_NS; n < (q + 1) * PAGE_NS; n++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint32_t both = exponentials(__fmul_rn(s[4 * n + 2 * r], a.scale),
                                                 __fmul_rn(s[4 * n + 2 * r + 1], a.scale), l.base[r]);
                    p[n / 2][n % 2 * 2 + r] = both;
                    float2 back = __half22float2(halves(both));
                    sum[r] = __fadd_rn(sum[r], __fadd_rn(back.x, back.y));
                }
#pragma unroll
            for (int r = 0; r < 2; r++) all[r] = q == 0 ? sum[r] : __fadd_rn(all[r], sum[r]);
            wgmma_fence();
#pragma unroll
            for (int k = 2 * q; k < 2 * q + 2; k++) {
                if (k == 0) wgmma_fresh<HD>(o, p[k], values);
                else wgmma<HD>(o, p[k], values + k * 2 * HD, true);
            }
        }
        wgmma_commit();
    }

    DEVICE void merge_sums(Rows& rows, float (&all)[2], const Factors& f) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            all[r] = __fadd_rn(all[r], __shfl_xor_sync(~0u, all[r], 1));
            all[r] = __fadd_rn(all[r], __shfl_xor_sync(~0u, all[r], 2));
            rows.sum[r] = __fmaf_rn(rows.sum[r], f.old[r], __fmul_rn(all[r], f.fresh[r]));
        }
    }

    // A split whose scores have come; with NEXT the scores of the one behind it come meanwhile.
    template <bool NEXT>
    DEVICE void step(Scores& s, Rows& rows, int split, RingPlace& keys, RingPlace& values) const {
        float fresh[HD / 2], all[2];
        Exponentials p;
        mask(s, rows, split * SPLIT);
        Largest l = largest_of(s, rows);
        values.await_full(memory.values_full());
        attend(s, l, p, fresh, all, values.stage);
        if (NEXT) {
            keys.await_full(memory.keys_full());
            wgmma_fence();
            multiply_keys(s, keys.stage);
        }
        merge_sums(rows, all, l.merge);
        wgmma_wait<NEXT>();
        wgmma_pin(fresh);
        release(values.of(memory.values_empty()));
        values.advance();
#pragma unroll
        for (int i = 0; i < HD / 2; i++) {
            int r = i / 2 % 2;
            rows.o[i] = __fmaf_rn(rows.o[i], l.merge.old[r], __fmul_rn(fresh[i], l.merge.fresh[r]));
        }
        if (!NEXT) return;
        wgmma_wait<0>();
        wgmma_pin(s);
        release(keys.of(memory.keys_empty()));
        keys.advance();
    }

    DEVICE void run() const {
        Rows rows;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            rows.position[r] = this->position_of(row(r));
            rows.max[r] = MASKED;
            rows.sum[r] = -0.0f;
        }
#pragma unroll
        for (int i = 0; i < HD / 2; i++) rows.o[i] = -0.0f;
        load_queries();
        Scores s;
        RingPlace keys, values;
        keys.await_full(memory.keys_full());
        wgmma_fence();
        multiply_keys(s, keys.stage);
        wgmma_wait<0>();
        wgmma_pin(s);
        release(keys.of(memory.keys_empty()));
        keys.advance();
        int last = this->splits() - 1;
#pragma unroll 1
        for (int split = this->begin(); split < last; split++) step<true>(s, rows, split, keys, values);
        step<false>(s, rows, last, keys, values);
        write(rows);
    }

    DEVICE void write(Rows& rows) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (row(r) >= tile.count) continue;
            const int64_t at = this->place(row(r));
            if (a.sinks) {
                const float factor = add_sink(a, at, rows.max[r], rows.sum[r]);
#pragma unroll
                for (int n = 0; n < HD / 8; n++)
#pragma unroll
                    for (int i = 4 * n + 2 * r; i < 4 * n + 2 * r + 2; i++) rows.o[i] = __fmul_rn(rows.o[i], factor);
            }
            float* to = a.out + at * HD + 2 * lane.t;
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
                *reinterpret_cast<float2*>(to + 8 * n) = make_float2(__fdiv_rn(rows.o[4 * n + 2 * r], rows.sum[r]),
                                                                     __fdiv_rn(rows.o[4 * n + 2 * r + 1], rows.sum[r]));
        }
    }
};
#endif

template <int HD, bool NEAR> DEVICE void attention_wide(const AttentionArgs& a) {
#ifdef HAS_WGMMA
    extern __shared__ __align__(128) uint8_t wide_memory[];
    launch_dependents();
    grid_dependency_wait();
    Shared at = shared_address(wide_memory);
    // The longest rows come last and take longest: they begin first.
    int unit = gridDim.x - 1 - blockIdx.x;
    if (threadIdx.x == 0) WidePlaces<HD>{at}.init_barriers();
    __syncthreads();
    if (threadIdx.x >= 2 * GROUP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PAGER_REGISTERS));
        Pager<HD, NEAR>(a, unit, at).run();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(ATTENDER_REGISTERS));
        Attender<HD, NEAR>(a, unit, at).run();
    }
#endif
}

// One block a multiprocessor, for each pair of tile and key-value head. Layers that see only what is near have kernels of
// their own, so that the others' are as they were.
#define ATTENTION_WIDE(HD)                                        \
    extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1) \
    attention_wide_##HD(const __grid_constant__ AttentionArgs a) { attention_wide<HD, false>(a); } \
    extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1) \
    attention_wide_near_##HD(const __grid_constant__ AttentionArgs a) { attention_wide<HD, true>(a); }
ATTENTION_WIDE(64) ATTENTION_WIDE(96) ATTENTION_WIDE(128)
