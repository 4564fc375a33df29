// The attention of a decode step: RoPE, the new position's keys and values, and the heads of one
// (row, key-value head) pair, by one block or by several.
//
// A pair's splits are dealt to `parts` blocks, and in a block to teams of four warps: split i belongs to
// part i % parts, and there to team i / parts % teams. Each team has room for the pages of one split and
// asks for those of its next one when it is done with the last, and for those of the next layer behind the merge: pages
// of earlier positions are known long before queries. One block that has room for all partial results of a
// pair merges them itself; several publish them (exchange.cuh), and their warps merge eight columns each.
//
// Published partial results are overwritten in the next layer only: by blocks that have its queries, which
// depend on all of attn, and a column of attn is published when its warp has read all that it merges. A block
// publishes what it computes before it merges, and computes without waiting for another's partial results. So
// no two blocks wait for each other.
#pragma once
#include "step_plan.cuh"
#include "step_split.cuh"

static_assert(MAX_TEAMS == STEP_WARPS / TEAM_WARPS);

// Tables of the step's rows that attention needs, read once a step.
struct RowTables {
    Row rows[STEP_ROWS];
    int last_page[STEP_ROWS];
    float2 rope[STEP_ROWS][STEP_HEAD / 2];
    TeamMaxima maxima[MAX_TEAMS];
};
constexpr int ROW_TABLES_BYTES = 3200;
static_assert(sizeof(RowTables) <= ROW_TABLES_BYTES);

// A barrier of the consumer warps.
DEVICE void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(STEP_THREADS) : "memory"); }

// The maximum and the sum of a split lie behind its dimensions.
DEVICE uint64_t partial_at(const StepArgs& a, int row, int head, int split, int head_dim) {
    return ((uint64_t(row) * a.rope.heads + head) * a.partial_splits + split) * (head_dim + 2);
}

// One head's columns, eight of them, merged by a warp from published splits in ascending order. Lane l has
// column l % 8; of each four splits it polls one, number l / 8.
// COMPACT: with few instructions (step_experts.cuh).
template <bool COMPACT> struct PublishedMerge {
    static constexpr int BATCH = 32, MINE = BATCH / 4;
    const Word* from;  // of the head's first split
    uint32_t tag;
    int splits, head_dim, column, lane;
    float max, sum, o;

    DEVICE PublishedMerge(const Word* first, uint32_t tag, int splits, int head_dim, int column)
        : from(first), tag(tag), splits(splits), head_dim(head_dim), lane(threadIdx.x & 31), max(MASKED), sum(0.0f), o(0.0f) {
        this->column = column + lane % 8;
    }

    DEVICE void run() {
#pragma unroll 1
        for (int first = 0; first < splits; first += BATCH) batch(first);
    }

    DEVICE void batch(int first) {
        const int count = min(BATCH, splits - first);
        Word ends[2] = {}, v[MINE];
        bool pending;
        do {
            pending = false;
            const Word* at = from + uint64_t(first + lane) * (head_dim + 2) + head_dim;
            if (lane < count) {
                load_two_words(ends, at);
                pending = tag_in(ends[0]) != tag || tag_in(ends[1]) != tag;
            }
#pragma unroll
            for (int i = 0; i < MINE; i++) {
                int split = 4 * i + lane / 8;
                v[i] = split < count ? load_word(from + uint64_t(first + split) * (head_dim + 2) + column) : Word(tag) << 32;
            }
#pragma unroll
            for (int i = 0; i < MINE; i++) pending |= tag_in(v[i]) != tag;
        } while (__any_sync(~0u, pending));
        // The factors of all splits at once: the maximum in front of a split is one of a prefix.
        float mine = lane < count ? value_in(ends[0]) : MASKED, until = fmaxf(max, mine);
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            float before = __shfl_up_sync(~0u, until, d);
            if (lane >= d) until = fmaxf(until, before);
        }
        float before = __shfl_up_sync(~0u, until, 1);
        Rescale f = rescale_factors(lane == 0 ? max : before, mine);
        float part = __fmul_rn(value_in(ends[1]), f.fresh);
        const auto add = [&](int i, Word of) {
            float old = __shfl_sync(~0u, f.old, i), fresh = __shfl_sync(~0u, f.fresh, i);
            float value = __shfl_sync(~0u, value_in(of), i % 4 * 8 + lane % 8);
            float of_sum = __shfl_sync(~0u, part, i), of_o = __fmul_rn(value, fresh);
            bool is_first = first + i == 0;  // taken as it is: its factor is 1
            sum = is_first ? of_sum : __fmaf_rn(sum, old, of_sum);
            o = is_first ? value : __fmaf_rn(o, old, of_o);
        };
        if (COMPACT) {
#pragma unroll 1
            for (int i = 0; i < count; i += 4) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (i + j < count) add(i + j, v[0]);
#pragma unroll
                for (int j = 1; j < MINE; j++) v[j - 1] = v[j];
            }
        } else {
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                if (i >= count) break;
                add(i, v[i / 4]);
            }
        }
        max = __shfl_sync(~0u, until, 31);
    }
};

// LAYER has the norms of a layer's heads. COMPACT: it has nothing else, and outputs are published in F32, not as halves.
template <int HD, typename LAYER, bool COMPACT> struct Attention {
    static constexpr bool HALVES = !COMPACT;
    using Split = TeamSplit<HD>;

    const StepArgs& a;
    const LAYER* layers;
    RowTables& tables;
    __half* buffers;    // [teams][pages of a split]
    float* heads;       // [group + 2][HD]: queries, the new key, the new value
    __half* queries;    // [group][QUERY_STRIDE]
    float* kept;        // [group][splits][HD + 2], where one block merges
    Shared full;        // the barrier of the first team's buffer
    Divisor kv_heads, parts;
    int group, part, first_unit, unit_step, teams, team, warp, lane;

    // A team's work: one split of a pair in one layer.
    struct Item {
        int layer, unit, split;
    };

    DEVICE Attention(const StepArgs& args, const LAYER* layers, uint8_t* smem, Shared full)
        : a(args), layers(layers),
          tables(*reinterpret_cast<RowTables*>(smem + args.shared.teams * Split::BYTES)),
          buffers(reinterpret_cast<__half*>(smem)), full(full), kv_heads(args.rope.kv_heads), parts(args.parts),
          group(kv_heads.of(args.rope.heads)), first_unit(parts.of(blockIdx.x)), unit_step(parts.of(args.attention_blocks)),
          teams(args.shared.teams), team(threadIdx.x / TEAM_THREADS), warp(threadIdx.x / 32), lane(threadIdx.x & 31) {
        part = blockIdx.x - first_unit * args.parts;
        heads = reinterpret_cast<float*>(smem + args.shared.teams * Split::BYTES + ROW_TABLES_BYTES);
        kept = heads + (group + 2) * HD;
        queries = reinterpret_cast<__half*>(kept + (args.partial_splits ? 0 : group * args.shared.kept_splits * (HD + 2)));
    }

    DEVICE bool publishes() const { return a.partial_splits != 0; }
    DEVICE int units() const { return a.rows * a.rope.kv_heads; }
    DEVICE int row_of(int unit) const { return kv_heads.of(unit); }
    DEVICE int splits_of(int row) const { return tables.rows[row].position / SPLIT + 1; }

    DEVICE void load_row_tables() {
        for (int row = 0; row < a.rows; row++) {
            Row r = a.rope.rows[row];
            if (threadIdx.x == 0) {
                tables.rows[row] = r;
                tables.last_page[row] = a.rope.kv.tables[r.table + r.position / PAGE];
            }
            for (int i = threadIdx.x; i < a.rope.dims / 2; i += STEP_THREADS)
                tables.rope[row][i] = a.rope.rope_table[int64_t(r.position) * (a.rope.dims / 2) + i];
        }
        sync_consumers();
    }

    DEVICE KvArgs kv_of(int layer) const {
        KvArgs kv = a.rope.kv;
        kv.layer_offset += layer * a.layer_halves;
        return kv;
    }

    // The item itself if there is such a split, or the team's next one; its layer is n_layers behind the last.
    DEVICE Item existing(Item at) const {
        while (at.layer < a.n_layers && at.split >= splits_of(row_of(at.unit))) {
            at.split = part + team * a.parts;
            at.unit += unit_step;
            if (at.unit < units()) continue;
            at.unit = first_unit;
            at.layer++;
        }
        return at;
    }
    DEVICE Item next(Item at) const {
        at.split += teams * a.parts;
        return existing(at);
    }

    DEVICE int pages_of(const Item& at) const {
        int position = tables.rows[row_of(at.unit)].position;
        return min(position / PAGE + 1 - at.split * SPLIT_PAGES, SPLIT_PAGES);
    }
    // The page that this lane will copy a half of: lanes 2i and 2i + 1 copy keys and values of page i.
    DEVICE int page_of(const Item& at) const {
        if (at.layer == a.n_layers || lane >= 2 * pages_of(at)) return 0;
        return a.rope.kv.tables[tables.rows[row_of(at.unit)].table + at.split * SPLIT_PAGES + lane / 2];
    }
    // Asks for an item's pages, by the team's first warp, when the whole team is done with those before.
    DEVICE void fetch(const Item& at, int page) const {
        if (at.layer == a.n_layers) return;
        constexpr int HALF = PAGE * HD;  // of a page: its keys or its values
        const int pages = pages_of(at), kv = at.unit - row_of(at.unit) * a.rope.kv_heads;
        const Shared bar = full + team * BARRIER_BYTES;
        if (lane == 0) barrier_expect(bar, pages * 2 * HALF * 2);
        __syncwarp();
        if (lane >= 2 * pages) return;
        KvArgs from = kv_of(at.layer);
        const __half* half = lane & 1 ? value_at(from, page, kv, a.rope.kv_heads, HD) : key_at(from, page, kv, HD);
        copy_bulk(shared_address(buffer() + lane * HALF), half, HALF * 2, bar);
    }
    DEVICE __half* buffer() const { return buffers + team * (Split::BYTES / 2); }

    // COMPACT: a layer's norms of heads in shared memory, copied before its queries arrive, for a loop that is not unrolled
    // waits for every load. There is one row, and they take the place of others' tables.
    DEVICE float* norms() const { return reinterpret_cast<float*>(tables.rope[1]); }
    DEVICE void fetch_norms(int layer) const {
        static_assert(2 * HD * sizeof(float) <= (STEP_ROWS - 1) * sizeof(tables.rope[0]));
        const int i = threadIdx.x - (STEP_THREADS - 2 * HD);
        if (layer == a.n_layers || i < 0) return;
        const float* from = i < HD ? layers[layer].q_norm : layers[layer].k_norm;
        if (from) norms()[i] = from[i % HD];
    }

    // Heads of a pair that this block takes: the queries, and with the last split the new key and value.
    DEVICE int heads_of(int row) const {
        const int last = splits_of(row) - 1;
        return last - parts.of(last) * int(parts.by) == part ? group + 2 : group;
    }
    DEVICE int head_at(int kv, int h) const {
        return h < group ? kv * group + h : a.rope.heads + (h - group) * a.rope.kv_heads + kv;
    }
    DEVICE RopeArgs rope_of(int layer, int row) const {
        const LAYER& l = layers[layer];
        RopeArgs rope = a.rope;
        int position = tables.rows[row].position;
        rope.head_dim = HD;
        if (a.unrotated_every && (layer + 1) % a.unrotated_every == 0) rope.dims = 0;
        rope.rows = tables.rows;
        rope.rope_table = tables.rope[row] - int64_t(position) * (rope.dims / 2);
        rope.q_norm = COMPACT && l.q_norm ? norms() : l.q_norm;
        rope.k_norm = COMPACT && l.k_norm ? norms() + HD : l.k_norm;
        rope.kv = kv_of(layer);
        rope.kv.tables = tables.last_page + row - (tables.rows[row].table + position / PAGE);
        return rope;
    }

    // They are taken when they have come.
    DEVICE void take_heads(int layer, int row, int kv) const {
        RopeArgs rope = rope_of(layer, row);
        const int width = (rope.heads + 2 * rope.kv_heads) * HD, count = heads_of(row);
#pragma unroll 1
        for (int h = warp; h < count; h += STEP_WARPS) {
            const int head = head_at(kv, h);
            const Word* from = a.exchange.replica(a.exchange.qkv) + row * row_words(width) + word_index(head * HD + 4 * lane);
            float* mine = heads + h * HD;
            Four f;
            while (4 * lane < HD && !poll_four(f, from, tag_of(a, layer, QKV_TAG))) {}
            if (4 * lane < HD)
                *reinterpret_cast<float4*>(mine + 4 * lane) = make_float4(f.v[0], f.v[1], f.v[2], f.v[3]);
            __syncwarp();
            rope.q = queries + h * QUERY_STRIDE<HD> - (int64_t(row) * rope.heads + head) * HD;
            rope_head(rope, mine, row, head);
        }
    }
    // The new key and value are written to the cache when nothing waits for this block.
    DEVICE void append_heads(int layer, int row, int kv) const {
        const RopeArgs rope = rope_of(layer, row);
        const int count = heads_of(row);
#pragma unroll 1
        for (int h = warp; h < count; h += STEP_WARPS)
            if (h >= group) append_kv(rope, heads + h * HD, row, head_at(kv, h));
    }

    // One split, whose pages have come or will, into `kept` or published.
    DEVICE void compute(const Item& at, uint32_t parity) const {
        const int row = row_of(at.unit), kv = at.unit - row * a.rope.kv_heads;
        const int last = tables.rows[row].position - at.split * SPLIT;
        Split split(buffer(), tables.maxima[team], team);
        barrier_wait(full + team * BARRIER_BYTES, parity);
        if (last < SPLIT) split.add_position(heads + group * HD, heads + (group + 1) * HD, last);
        const uint32_t tag = tag_of(a, at.layer, PARTIAL_TAG);
        const bool published = publishes();
        Word* words = a.exchange.partials + partial_at(a, row, kv * group, at.split, HD);
        float* own = kept + at.split * (HD + 2);
        // From one head to the next.
        const int step = (published ? a.partial_splits : splits_of(row)) * (HD + 2);
        split.run(queries, group, last, a.attention.scale, [&](int h, int i, float x, float y) {
            if (published) publish_two(words + h * step + i, x, y, tag);
            else *reinterpret_cast<float2*>(own + h * step + i) = make_float2(x, y);
        });
    }

    DEVICE void merge_kept(int layer, int row, int kv) const {
        AttentionArgs args = a.attention;
        args.partial = kept;
        args.splits = splits_of(row);
        // Models with sinks take other kernels (decode_step.rs), so nothing is compiled for them.
        args.sinks = nullptr;
#pragma unroll 1
        for (int h = warp; h < group; h += STEP_WARPS) {
            Word* to = a.exchange.attn + row * row_words(a.rope.heads * HD);
            const int column = (kv * group + h) * HD;
            const uint32_t tag = tag_of(a, layer, ATTENTION_TAG);
            merge_splits<HD>(args, h, 0, tables.rows[row].position, HD, [&](int i, float v) {
                if constexpr (HALVES)
                    a.exchange.publish_halves_to_replicas(to + halves_index(column + i), v, layers[layer].attn_up, tag);
                else
                    a.exchange.publish_to_replicas(to + word_index(column + i), v, tag);
            });
        }
    }

    // All heads of all rows, eight columns of one by a warp of one of the attention's blocks.
    DEVICE void merge_published(int layer) const {
        constexpr int TASKS = HD / 8;  // of a head
        static_assert(REPLICAS == 4);  // a lane publishes to one of them
        post_block(a, tag_of(a, layer, PARTIAL_TAG));
#pragma unroll 1
        for (int i = warp * a.attention_blocks + blockIdx.x; i < a.rows * a.rope.heads * TASKS; i += STEP_WARPS * a.attention_blocks) {
            int at = i / TASKS, row = at / a.rope.heads, head = at - row * a.rope.heads;
            const Word* from = a.exchange.partials + partial_at(a, row, head, 0, HD);
            PublishedMerge<COMPACT> merge(from, tag_of(a, layer, PARTIAL_TAG), splits_of(row), HD, i % TASKS * 8);
            merge.run();
            const float v = __fdiv_rn(merge.o, merge.sum);
            const int column = head * HD + merge.column;
            const uint32_t tag = tag_of(a, layer, ATTENTION_TAG);
            Word* to = a.exchange.attn + row * row_words(a.rope.heads * HD);
            // Lanes 8 apart have the same column.
            if constexpr (HALVES) {
                if (lane < 8) a.exchange.publish_halves_to_replicas(to + halves_index(column), v, layers[layer].attn_up, tag);
            } else {
                publish(to + word_index(column) + lane / 8 * a.exchange.stride, v, tag);
            }
        }
    }

    DEVICE void run() {
        load_row_tables();
        const bool works = team < teams, leads = works && warp % TEAM_WARPS == 0;
        Item at = existing({works ? 0 : a.n_layers, first_unit, part + team * a.parts});
        int page = leads ? page_of(at) : 0;
        uint32_t parity = 0;
        // Asks for the pages of the team's next split, when the whole team is done with those before. Lanes ask one after the
        // other, which takes time that other blocks wait: pages of the next layer are asked for behind the merge.
        bool asks = works;
        const auto ask = [&] {
            // The copies overwrite what was written here.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            sync_team(team);
            asks = false;
            if (!leads) return;
            fetch(at, page);
            page = page_of(next(at));
        };
        if (COMPACT) fetch_norms(0);
        if (asks) ask();
#pragma unroll 1
        for (int layer = 0; layer < a.n_layers; layer++) {
            if (COMPACT) sync_consumers();
#pragma unroll 1
            for (int unit = first_unit; unit < units(); unit += unit_step) {
                const int row = row_of(unit), kv = unit - row * a.rope.kv_heads;
                post_block(a, tag_of(a, layer, QKV_TAG));
                take_heads(layer, row, kv);
                sync_consumers();
#pragma unroll 1
                while (at.layer == layer && at.unit == unit) {
                    compute(at, parity);
                    parity ^= 1;
                    at = next(at);
                    asks = true;
                    if (at.layer == layer) ask();
                }
                sync_consumers();
                if (!publishes()) merge_kept(layer, row, kv);
                append_heads(layer, row, kv);
            }
            // All heads have been taken.
            if (COMPACT) fetch_norms(layer + 1);
            if (publishes()) merge_published(layer);
            if (asks) ask();
        }
        post_end(a);
    }
};
