// The draw: from a row of logits to a token, as gpu-child/src/sampler.rs defines it, to the bit.
//
// A token's weight is e^((logit - max) / temperature), computed by the same F32 operations as on the
// host; its mass is the weight in units of 2^-40, a whole number. Sums of whole numbers are exact, so
// they are made here in whatever order is fast: nothing depends on how many blocks share a row.
//
//   biases, penalties, mask, largest logit | top-k, top-p: the smallest weight that stays | the draw, in order of ids
//
// Owner: a row belongs to a cluster of up to MAX_CLUSTER blocks, more where there are few rows; each
// block has a run of whole strips of STRIP tokens. Two searches do everything:
//   radix_select  from the heaviest weight down to where a measure (a count or a mass) is reached: three
//                 levels of a histogram over the bits of the weight, 12, 11 and 6 of them;
//   scan_search   along the ids to where it is reached: prefix sums of strips, then of one strip.
// Few tokens survive the first level as a rule: they are compacted into the first block, which finishes
// alone with them in shared memory. Where they do not fit, the cluster goes on over the row: slower, same
// bits.
//
// Bytes moved: the row once for a plain draw, twice for a filtered one as a rule, six times at worst.
#pragma once
#include "drawn_tokens.cuh"

struct SampleRow {
    uint64_t top_p;   // in 2^-64; the largest is off
    uint64_t number;  // the draw, in 2^-64
    float rate;       // powers of two below one logit; 0: the largest logit itself
    float min_p;      // at least LEAST
    float repetition, frequency, presence;
    int row;          // of the logits
    int top_k;        // 0 is off
    int history;      // where its prompt and completion begin, then its mask and biases
    int prompt, length;  // tokens of the prompt, of both; 0: nothing to penalize
    int newest;       // of the batch, whose token stands for one below zero in the history
    int mask;         // words behind its history, one for 32 tokens: a bit for each that may be drawn; 0: none
    int biases;       // behind those: ids, ascending, then as many numbers
    int unused;
};
LAYOUT(SampleRow, 72, AT(top_p, 0) AT(number, 8) AT(rate, 16) AT(min_p, 20) AT(repetition, 24)
       AT(frequency, 28) AT(presence, 32) AT(row, 36) AT(top_k, 40) AT(history, 44) AT(prompt, 48)
       AT(length, 52) AT(newest, 56) AT(mask, 60) AT(biases, 64) AT(unused, 68))

struct SampleArgs {
    float* logits;          // [rows, vocab]; what is added to them stays there
    const SampleRow* rows;  // [gridDim.y]
    const int* history;     // and masks and biases
    const Row* batch;
    DrawnTokens drawn;        // the largest logit of each row; then what was drawn
    int vocab;
};
LAYOUT(SampleArgs, 64, AT(logits, 0) AT(rows, 8) AT(history, 16) AT(batch, 24) AT(drawn, 32)
       AT(vocab, 56))

constexpr int SAMPLE_THREADS = 512, SAMPLE_WARPS = SAMPLE_THREADS / 32;
constexpr int MAX_CLUSTER = 8;
constexpr int STRIP = 256, IN_STRIP = STRIP / 32;
constexpr uint32_t LEAST = (127 - 40) << 23;  // bits of 2^-40: what weighs less has no mass
constexpr int LEVELS = 3;
constexpr int BUCKETS = (40 << 6) + 1;
constexpr int MAX_SURVIVORS = 4096;      // that fit into shared memory (host: device/cuda/sample.rs)
constexpr int SEEN = 2 * MAX_SURVIVORS;  // tokens whose history is counted at a time
constexpr uint32_t IN_PROMPT = 0x80000000u;

struct Survivor {
    uint32_t id, weight;
};

// A place that was searched for: in which of many measures it lies, how far inside, and how much that one
// has.
struct Found {
    uint64_t rest, inside;
    uint32_t at;
};

struct SampleShared {
    uint2 masses[BUCKETS];  // low and high halves
    uint64_t warps[SAMPLE_WARPS];
    uint64_t totals[MAX_CLUSTER];
    Found place;
    uint32_t n_survivors, token;
};

// Bits of e^(distance / temperature).
DEVICE uint32_t weight_of(float distance, float rate) {
    constexpr float ROUND = 12582912.0f;  // leaves a whole number in the lowest bits
    float power = fmaxf(__fmul_rn(distance, rate), -64.0f);
    float rounded = __fadd_rn(power, ROUND);
    float r = __fsub_rn(power, __fsub_rn(rounded, ROUND));
    float e = 1.5453163e-4f;
    e = __fadd_rn(__fmul_rn(e, r), 1.3390863e-3f);
    e = __fadd_rn(__fmul_rn(e, r), 9.618083e-3f);
    e = __fadd_rn(__fmul_rn(e, r), 5.550357e-2f);
    e = __fadd_rn(__fmul_rn(e, r), 0.24022651f);
    e = __fadd_rn(__fmul_rn(e, r), 0.6931472f);
    e = __fadd_rn(__fmul_rn(e, r), 1.0f);
    return __float_as_uint(e) + ((__float_as_uint(rounded) - __float_as_uint(ROUND)) << 23);
}

DEVICE uint64_t mass_of(uint32_t weight) {
    uint64_t significand = (weight & 0x007FFFFFu) | 0x00800000u;
    return (significand << 17) >> min(127u - (weight >> 23), 63u);
}

// A share in 2^-64, rounded up.
DEVICE uint64_t share_of(uint64_t mass, uint64_t of) {
    return __umul64hi(mass, of) + (mass * of != 0);
}

DEVICE uint64_t value(uint2 v) { return uint64_t(v.y) << 32 | v.x; }
// An addition in two halves, because shared memory adds no more than 32 bits at a time.
DEVICE void add(uint2* to, uint64_t v) {
    uint32_t low = uint32_t(v), old = atomicAdd(&to->x, low);
    uint32_t high = uint32_t(v >> 32) + (old > ~low);
    if (high) atomicAdd(&to->y, high);
}

// Blocks that share a row and see each other's shared memory.
struct Cluster {
    int rank, size;

    DEVICE static Cluster all() {
#if __CUDA_ARCH__ >= 900
        uint32_t rank, size;
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
        return {int(rank), int(size)};
#else
        return {0, 1};
#endif
    }
    DEVICE void sync() const {
#if __CUDA_ARCH__ >= 900
        if (size > 1) {
            asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
            return;
        }
#endif
        __syncthreads();
    }
    // The same address in the shared memory of block `other`.
    template <class T> DEVICE T* of(T* mine, int other) const {
#if __CUDA_ARCH__ >= 900
        if (size > 1) {
            uint64_t theirs;
            asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(other));
            return reinterpret_cast<T*>(theirs);
        }
#endif
        return mine;
    }
};

struct Sampler {
    const SampleArgs& a;
    const SampleRow& p;
    SampleShared& smem;
    Survivor* survivors;  // [MAX_SURVIVORS]
    uint2* strips;        // [strips of the row]
    Cluster cluster;
    float* row;
    float largest;
    int n_strips, first, last;  // strips of the row, of this block
    bool is_compacted;          // all tokens that are left lie in `survivors`

    // ---- the tokens ----

    // Weights of a lane's tokens in a strip; nothing past the vocabulary.
    DEVICE void weigh(int strip, uint32_t (&weights)[IN_STRIP]) const {
        float logits[IN_STRIP];
        int id = strip * STRIP + int(threadIdx.x & 31);
#pragma unroll
        for (int j = 0; j < IN_STRIP; j++)
            logits[j] = id + 32 * j < a.vocab ? row[id + 32 * j] : -INFINITY;
#pragma unroll
        for (int j = 0; j < IN_STRIP; j++) weights[j] = weight_of(__fsub_rn(logits[j], largest), p.rate);
    }

    // Calls `f` for every token of this block that has mass.
    template <class F> DEVICE void each(F f) const {
        if (is_compacted) {
            for (int i = threadIdx.x; i < smem.n_survivors; i += SAMPLE_THREADS) f(survivors[i].id, survivors[i].weight);
            return;
        }
        for (int strip = first + int(threadIdx.x / 32); strip < last; strip += SAMPLE_WARPS) {
            uint32_t weights[IN_STRIP];
            weigh(strip, weights);
#pragma unroll
            for (int j = 0; j < IN_STRIP; j++)
                if (weights[j] >= LEAST) f(uint32_t(strip * STRIP + 32 * j + (threadIdx.x & 31)), weights[j]);
        }
    }

    // ---- biases, penalties, mask ----

    DEVICE float penalized(float logit, uint32_t seen) const {
        logit = logit < 0.0f ? __fmul_rn(logit, p.repetition) : __fdiv_rn(logit, p.repetition);
        logit = fminf(fmaxf(logit, -3.402823466e38f), 3.402823466e38f);
        uint32_t count = seen & ~IN_PROMPT;
        return count == 0 ? logit
                          : __fsub_rn(logit, __fadd_rn(__fmul_rn(float(count), p.frequency), p.presence));
    }

    // Gives `rank` of the row's largest logit behind them. Minus infinity is below every logit, and has no mass.
    DEVICE uint64_t reshape() {
        uint32_t* seen = reinterpret_cast<uint32_t*>(survivors);
        const int* history = a.history + p.history;
        const int* mask = history + p.length;
        const int* biased = mask + p.mask;
        const float* biases = reinterpret_cast<const float*>(biased + p.biases);
        uint64_t best = 0;
        int end = min(last * STRIP, a.vocab);
        for (int start = first * STRIP; start < end; start += SEEN) {
            int count = min(SEEN, end - start);
            for (int i = threadIdx.x; i < count; i += SAMPLE_THREADS) seen[i] = 0;
            for (int i = threadIdx.x; i < p.biases; i += SAMPLE_THREADS) {
                int at = biased[i] - start;
                if (at >= 0 && at < count) row[start + at] = __fadd_rn(row[start + at], biases[i]);
            }
            __syncthreads();
            for (int i = threadIdx.x; i < p.length; i += SAMPLE_THREADS) {
                int id = history[i], at = (id < 0 ? a.batch[p.newest].token : id) - start;
                if (at < 0 || at >= count) continue;
                if (i < p.prompt) atomicOr(seen + at, IN_PROMPT);
                else atomicAdd(seen + at, 1);
            }
            __syncthreads();
            for (int i = threadIdx.x; i < count; i += SAMPLE_THREADS) {
                float logit = row[start + i];
                if (seen[i]) row[start + i] = logit = penalized(logit, seen[i]);
                if (p.mask > 0 && !(uint32_t(mask[(start + i) / 32]) >> (start + i) % 32 & 1))
                    row[start + i] = logit = -INFINITY;
                uint64_t r = rank(logit, start + i);
                best = r > best ? r : best;
            }
            __syncthreads();
        }
        for (int d = 16; d > 0; d >>= 1) {
            uint64_t other = __shfl_xor_sync(~0u, best, d);
            best = other > best ? other : best;
        }
        if ((threadIdx.x & 31) == 0) smem.warps[threadIdx.x / 32] = best;
        __syncthreads();
        for (int w = 0; w < SAMPLE_WARPS; w++) best = smem.warps[w] > best ? smem.warps[w] : best;
        if (threadIdx.x < cluster.size) *cluster.of(smem.totals + cluster.rank, threadIdx.x) = best;
        cluster.sync();
        for (int q = 0; q < cluster.size; q++) best = smem.totals[q] > best ? smem.totals[q] : best;
        cluster.sync();
        return best;
    }

    // ---- the searches ----

    // Prefix sum: of the threads before this one; and the sum of all.
    DEVICE uint64_t sum_before(uint64_t mine, uint64_t& all) const {
        int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
        uint64_t sum = mine;
        for (int d = 1; d < 32; d <<= 1) {
            uint64_t other = __shfl_up_sync(~0u, sum, d);
            if (lane >= d) sum += other;
        }
        __syncthreads();
        if (lane == 31) smem.warps[warp] = sum;
        __syncthreads();
        uint64_t before = 0;
        all = 0;
        for (int w = 0; w < SAMPLE_WARPS; w++) {
            if (w == warp) before = all;
            all += smem.warps[w];
        }
        return before + sum - mine;
    }

    // Finds the place that `target` makes of the total, among measures in order: `count` of them here, those
    // of the blocks behind each other.
    template <class At, class Target> DEVICE Found locate(int begin, int count, At at, Target target) {
        int share = (count + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
        int i = min(int(threadIdx.x) * share, count), end = min(i + share, count);
        uint64_t mine = 0, all, total = 0;
        for (int j = i; j < end; j++) mine += at(j);
        uint64_t before = sum_before(mine, all);
        if (threadIdx.x < cluster.size) *cluster.of(smem.totals + cluster.rank, threadIdx.x) = all;
        cluster.sync();
        for (int q = 0; q < cluster.size; q++) {
            if (q < cluster.rank) before += smem.totals[q];
            total += smem.totals[q];
        }
        uint64_t place = target(total);
        // A place before this thread's measures gives a difference that wraps around.
        if (place - before < mine) {
            while (place - before >= at(i)) before += at(i++);
            Found found = {place - before, at(i), uint32_t(begin + i)};
            for (int q = 0; q < cluster.size; q++) *cluster.of(&smem.place, q) = found;
        }
        cluster.sync();
        return smem.place;
    }

    // Moves tokens that weigh at least `least` to the first block, if they fit there. Gives false to the
    // others then: they are done.
    DEVICE bool compact(uint32_t least) {
        Survivor* list = cluster.of(survivors, 0);
        uint32_t* n = cluster.of(&smem.n_survivors, 0);
        bool full = false;
        each([&](uint32_t id, uint32_t weight) {
            if (weight < least || full) return;
            uint32_t together = __activemask(), lane = threadIdx.x & 31, leader = __ffs(together) - 1;
            uint32_t at = 0;
            if (lane == leader) at = atomicAdd(n, __popc(together));
            at = __shfl_sync(together, at, leader) + __popc(together & ((1u << lane) - 1));
            if (at < MAX_SURVIVORS) list[at] = {id, weight};
            full = at >= MAX_SURVIVORS;
        });
        cluster.sync();
        bool fits = *n <= MAX_SURVIVORS;
        cluster.sync();
        if (!fits) {
            if (threadIdx.x == 0) smem.n_survivors = 0;
            return true;
        }
        is_compacted = true;
        cluster.size = 1;
        return cluster.rank == 0;
    }

    // The weight at which the measures of the heaviest reach the place that `target` makes of their
    // total. `at` is its bits, `inside` what all tokens of that weight have. False as for `compact`.
    template <class Measure, class Target>
    DEVICE bool radix_select(uint32_t least, Measure measure, Target target, Found& found) {
        uint32_t prefix = 0;
        for (int level = 0, below = 17; level < LEVELS; level++, below = level == 1 ? 6 : 0) {
            int bins = level == 0 ? BUCKETS : level == 1 ? 1 << 11 : 1 << 6, above = level == 1 ? 17 : 6;
            for (int i = threadIdx.x; i < bins; i += SAMPLE_THREADS) smem.masses[i] = {0, 0};
            __syncthreads();
            each([&](uint32_t, uint32_t weight) {
                uint32_t key = weight - LEAST;
                if (weight < least || (level > 0 && key >> above != prefix)) return;
                add(smem.masses + ((key >> below) - (level > 0 ? prefix << (above - below) : 0)), measure(weight));
            });
            cluster.sync();
            // Each block adds up a run of bins, the heaviest first.
            int run = (bins + cluster.size - 1) / cluster.size, begin = min(cluster.rank * run, bins);
            int count = min(run, bins - begin), top = bins - 1 - begin;
            for (int i = threadIdx.x; cluster.size > 1 && i < count; i += SAMPLE_THREADS) {
                uint64_t sum = 0;
                for (int q = 0; q < cluster.size; q++) sum += value(*cluster.of(smem.masses + top - i, q));
                smem.masses[top - i] = make_uint2(uint32_t(sum), uint32_t(sum >> 32));
            }
            __syncthreads();
            uint64_t rest = found.rest;
            found = locate(begin, count, [&](int i) { return value(smem.masses[top - i]); },
                           [&](uint64_t total) { return level == 0 ? target(total) : rest; });
            uint32_t bin = bins - 1 - found.at;
            prefix = level == 0 ? bin : (prefix << (above - below)) + bin;
            if (level == 0 && !is_compacted && !compact(max(least, LEAST + (prefix << below)))) return false;
        }
        found.at = LEAST + prefix;
        return true;
    }

    // The token in whose measure the place lies that `target` makes of the total.
    template <class Measure, class Target> DEVICE uint32_t scan_search(Measure measure, Target target) {
        int lane = threadIdx.x & 31, begin = is_compacted ? 0 : first, count = is_compacted ? n_strips : last - first;
        if (is_compacted) {
            for (int i = threadIdx.x; i < count; i += SAMPLE_THREADS) strips[i] = {0, 0};
            __syncthreads();
            each([&](uint32_t id, uint32_t weight) { add(strips + id / STRIP, measure(id, weight)); });
        } else {
            for (int i = threadIdx.x / 32; i < count; i += SAMPLE_WARPS) {
                uint32_t weights[IN_STRIP];
                weigh(begin + i, weights);
                uint64_t sum = 0;
#pragma unroll
                for (int j = 0; j < IN_STRIP; j++)
                    sum += measure(uint32_t((begin + i) * STRIP + 32 * j + lane), weights[j]);
                for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
                if (lane == 0) strips[i] = make_uint2(uint32_t(sum), uint32_t(sum >> 32));
            }
        }
        __syncthreads();
        Found found = locate(begin, count, [&](int i) { return value(strips[i]); }, target);
        uint32_t id = found.at * STRIP + threadIdx.x;
        uint64_t mine = 0, all;
        if (threadIdx.x < STRIP && id < a.vocab)
            mine = measure(id, weight_of(__fsub_rn(row[id], largest), p.rate));
        uint64_t before = sum_before(mine, all);
        if (found.rest - before < mine) smem.token = id;
        __syncthreads();
        return smem.token;
    }

    // ---- the draw ----

    DEVICE bool draw(uint32_t& token) {
        // Tokens stay that weigh more than `least`, or as much and have an id up to `tied`.
        uint32_t least = LEAST, tied = ~0u;
        Found found = {0, 0, 0};
        if (p.top_k > 0 && p.top_k < a.vocab) {
            uint64_t k = p.top_k;
            auto one = [](uint32_t) { return uint64_t(1); };
            auto kth = [=](uint64_t total) { return min(k, total) - 1; };
            if (!radix_select(least, one, kth, found)) return false;
            least = found.at;
        }
        if (p.top_p != ~0ull) {
            uint64_t top_p = p.top_p;
            auto mass = [](uint32_t weight) { return mass_of(weight); };
            auto needed = [=](uint64_t total) { return max(share_of(total, top_p), uint64_t(1)) - 1; };
            if (!radix_select(least, mass, needed, found)) return false;
            uint32_t bar = least = found.at;
            uint64_t last_tie = found.rest / mass_of(bar), ties = found.inside / mass_of(bar);
            if (last_tie + 1 < ties)
                tied = scan_search([=](uint32_t, uint32_t weight) { return uint64_t(weight == bar); },
                            [=](uint64_t) { return last_tie; });
        }
        uint32_t min_p = __float_as_uint(p.min_p), bar = max(least, min_p);
        if (min_p > least) tied = ~0u;
        uint64_t number = p.number;
        token = scan_search(
            [=](uint32_t id, uint32_t weight) {
                return weight > bar || (weight == bar && id <= tied) ? mass_of(weight) : 0;
            },
            [=](uint64_t total) { return __umul64hi(total, number); });
        return true;
    }
};

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, 2) sample(const __grid_constant__ SampleArgs a) {
    extern __shared__ __align__(16) uint8_t dynamic_smem[];
    __shared__ SampleShared smem;
    __shared__ SampleRow p;
    if (threadIdx.x == 0) {
        p = a.rows[blockIdx.y];
        smem.n_survivors = 0;
    }
    Cluster cluster = Cluster::all();
    cluster.sync();
    uint32_t token = drawn_token(a.drawn, p.row);
    if (token == NO_TOKEN) return;
    Survivor* survivors = reinterpret_cast<Survivor*>(dynamic_smem);
    int n_strips = (a.vocab + STRIP - 1) / STRIP, share = (n_strips + cluster.size - 1) / cluster.size;
    int first = min(cluster.rank * share, n_strips), last = min(first + share, n_strips);
    float* row = a.logits + int64_t(p.row) * a.vocab;
    Sampler sampler = {a, p, smem, survivors, reinterpret_cast<uint2*>(survivors + MAX_SURVIVORS), cluster, row, 0.0f,
                       n_strips, first, last, false};
    if (p.length > 0 || p.mask > 0 || p.biases > 0) token = ~uint32_t(sampler.reshape());
    sampler.largest = row[token];
    // All blocks have read the values that the first block is about to overwrite.
    cluster.sync();
    if (p.rate != 0.0f && !sampler.draw(token)) return;
    if (cluster.rank != 0 || threadIdx.x != 0) return;
    store_drawn_token(a.drawn, p.row, token);
}
