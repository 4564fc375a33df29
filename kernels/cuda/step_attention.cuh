// The attention of a decode step: RoPE, the new position's keys and values, and the heads of one
// (row, key-value head) pair, by one block.
//
// Pages of earlier positions are copied to shared memory while other blocks still compute the queries. The
// functions are those of rope_kv.cuh and attention.cuh; their pointers are moved so that the indices they
// compute fall into shared memory.
#pragma once
#include "step_plan.cuh"

constexpr int MAX_PAGES = 128;  // of a sequence

// Tables of the step's rows that attention needs, read once a step.
struct RowTables {
    Row rows[STEP_ROWS];
    int pages[STEP_ROWS][MAX_PAGES];
    float2 rope[STEP_ROWS][MAX_HEAD / 2];
    int identity[MAX_PAGES];  // page i of a sequence lies i pages on
};
constexpr int ROW_TABLES_BYTES = 8192;  // at most
static_assert(sizeof(RowTables) <= ROW_TABLES_BYTES);

// A barrier of the consumer warps.
DEVICE void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(STEP_THREADS) : "memory"); }

DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

struct Attention {
    const StepArgs& a;
    const StepLayer* layers;
    RowTables& tables;
    uint8_t* smem;
    int smem_bytes;

    DEVICE void load_row_tables() {
        for (int row = 0; row < a.rows; row++) {
            Row r = a.rope.rows[row];
            if (threadIdx.x == 0) tables.rows[row] = r;
            for (int i = threadIdx.x; i <= r.position / PAGE; i += STEP_THREADS)
                tables.pages[row][i] = a.rope.kv.tables[r.table + i];
            for (int i = threadIdx.x; i < a.rope.dims / 2; i += STEP_THREADS)
                tables.rope[row][i] = a.rope.rope_table[int64_t(r.position) * (a.rope.dims / 2) + i];
        }
        for (int i = threadIdx.x; i < MAX_PAGES; i += STEP_THREADS) tables.identity[i] = i;
        sync_consumers();
    }

    DEVICE KvArgs kv_of(int layer) const {
        KvArgs kv = a.rope.kv;
        kv.layer_offset += layer * a.layer_halves;
        return kv;
    }

    // Buffers of a pair in shared memory.
    template <int HD> struct AttentionBuffers {
        static constexpr int PAGE_HALVES = 2 * PAGE * HD;  // keys, then values

        float* heads;      // [warps][HD], then those of the new key and value
        __half* queries;   // [group][HD]
        __half* pages;     // [pages][PAGE_HALVES]
        float* partials;   // [group][splits][HD + 2]
        bool has_pages, has_partials;

        DEVICE AttentionBuffers(uint8_t* smem, int bytes, int group, int splits, int n_pages) {
            heads = reinterpret_cast<float*>(smem);
            queries = reinterpret_cast<__half*>(heads + (group + 2) * HD);
            partials = reinterpret_cast<float*>(queries + group * HD);
            pages = reinterpret_cast<__half*>(partials + ((group * splits * (HD + 2) + 3) & ~3));
            int used = int(reinterpret_cast<uint8_t*>(pages) - smem);
            has_partials = used <= bytes;
            has_pages = used + n_pages * PAGE_HALVES * 2 <= bytes;
        }
    };

    // Copies the pages of a pair to shared memory, or to the second-level cache where they do not fit.
    template <int HD> DEVICE void fetch(int layer, int row, int kv) const {
        constexpr int LINES = PAGE * HD * 2 / 16;
        int group = a.rope.heads / a.rope.kv_heads, position = tables.rows[row].position;
        int splits = position / SPLIT + 1, pages = position / PAGE + 1;
        AttentionBuffers<HD> my(smem, smem_bytes, group, splits, pages);
        KvArgs at = kv_of(layer);
#pragma unroll 1
        for (int page = threadIdx.x / 32; page < pages; page += STEP_WARPS) {
            const __half* keys = key_at(at, tables.pages[row][page], kv, HD);
            const __half* values = value_at(at, tables.pages[row][page], kv, a.rope.kv_heads, HD);
            __half* to = my.pages + page * my.PAGE_HALVES;
#pragma unroll 4
            for (int i = threadIdx.x & 31; i < LINES; i += 32)
                if (my.has_pages) {
                    copy_async(to + 8 * i, keys + 8 * i);
                    copy_async(to + PAGE * HD + 8 * i, values + 8 * i);
                } else if ((i & 7) == 0) {
                    prefetch_l2(keys + 8 * i);
                    prefetch_l2(values + 8 * i);
                }
        }
        asm volatile("cp.async.commit_group;");
    }

    DEVICE static void copy_async(__half* to, const __half* from) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
            ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from) : "memory");
    }

    template <int HD> DEVICE void attention_of_pair(int layer, int row, int kv) const {
        const StepLayer& l = layers[layer];
        int group = a.rope.heads / a.rope.kv_heads, tiles = (group + 15) / 16;
        int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
        int position = tables.rows[row].position, splits = position / SPLIT + 1;
        int64_t first_head = int64_t(row) * a.rope.heads + kv * group;
        AttentionBuffers<HD> my(smem, smem_bytes, group, splits, position / PAGE + 1);

        RopeArgs rope = a.rope;
        rope.head_dim = HD;
        rope.rows = tables.rows;
        rope.rope_table = tables.rope[row] - int64_t(position) * (rope.dims / 2);
        rope.q_norm = l.q_norm;
        rope.k_norm = l.k_norm;
        rope.q = my.queries - first_head * HD;
        rope.kv = kv_of(layer);
        rope.kv.tables = tables.pages[row] - tables.rows[row].table;
        int width = (rope.heads + 2 * rope.kv_heads) * HD;
        post_block(a, tag_of(a, layer, QKV_TAG));
#pragma unroll 1
        for (int h = warp; h < group + 2; h += STEP_WARPS) {
            int head = h < group ? kv * group + h : rope.heads + (h - group) * rope.kv_heads + kv;
            const Word* from = a.exchange.replica(a.exchange.qkv) + row * row_words(width) + word_index(head * HD + 4 * lane);
            float* mine = my.heads + h * HD;
            Four f;
            while (4 * lane < HD && !poll_four(f, from, tag_of(a, layer, QKV_TAG))) {}
            if (4 * lane < HD)
                *reinterpret_cast<float4*>(mine + 4 * lane) = make_float4(f.v[0], f.v[1], f.v[2], f.v[3]);
            __syncwarp();
            rope_and_append_kv(rope, mine, row, head);
        }
        AttentionArgs args = a.attention;
        args.q = rope.q;
        args.kv = rope.kv;
        Tile tile = {row, 0, 0, position, tables.rows[row].table};
        int kv_head = kv;
        if (my.has_partials) {
            args.splits = splits;
            args.partial = my.partials - first_head * splits * (HD + 2);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        sync_consumers();
        if (my.has_pages) {
            if (warp == (splits - 1) % STEP_WARPS) add_position<HD>(my, group, position / PAGE, position % PAGE);
            if (tiles > 1) sync_consumers();  // else only this warp reads that split
            // One key-value head by itself, of copied pages.
            args.heads = group;
            args.kv_heads = 1;
            args.q = my.queries - row * group * HD;
            args.partial = my.partials - int64_t(row) * group * splits * (HD + 2);
            args.kv = {my.pages, uint64_t(my.PAGE_HALVES), 0, tables.identity};
            tile.table = 0;
            kv_head = 0;
        }
#pragma unroll 1
        for (int i = warp; i < splits * tiles; i += STEP_WARPS) {
            int s = tiles == 1 ? i : i / tiles;
            tile.first = 16 * (i - s * tiles);
            tile.count = min(16, group - tile.first);
            attention_split<HD, true>(args, tile, kv_head, s);
        }
        sync_consumers();
        int64_t first = my.has_pages ? int64_t(row) * group : first_head;
#pragma unroll 1
        for (int h = warp; h < group; h += STEP_WARPS) {
            Word* to = a.exchange.attn + row * row_words(a.rope.heads * HD);
            int column = (kv * group + h) * HD;
            merge_splits(args, first + h, position, HD, [&](int i, float v) {
                a.exchange.publish_to_replicas(to + word_index(column + i), v, tag_of(a, layer, ATTENTION_TAG));
            });
        }
        sync_consumers();
    }

    // Writes the new key and value into their copied page.
    template <int HD> DEVICE void add_position(const AttentionBuffers<HD>& my, int group, int page, int slot) const {
        __half* to = my.pages + page * my.PAGE_HALVES;
        const float *key = my.heads + group * HD, *value = key + HD;
#pragma unroll 1
        for (int i = threadIdx.x & 31; i < HD; i += 32) {
            to[key_place(slot, i)] = __float2half_rn(key[i]);
            to[PAGE * HD + value_place(slot, i, HD)] = __float2half_rn(value[i]);
        }
        __syncwarp();
    }

    template <int HD> DEVICE void run(int block) {
        load_row_tables();
        int units = a.rows * a.rope.kv_heads, unit = block;
        if (unit >= units) return;
        int row = unit / a.rope.kv_heads, kv = unit - row * a.rope.kv_heads;
        fetch<HD>(0, row, kv);
#pragma unroll 1
        for (int layer = 0; layer < a.n_layers;) {
            attention_of_pair<HD>(layer, row, kv);
            unit += a.attention_blocks;
            if (unit >= units) {
                unit = block;
                if (++layer == a.n_layers) return post_end(a);
            }
            row = unit / a.rope.kv_heads;
            kv = unit - row * a.rope.kv_heads;
            fetch<HD>(layer, row, kv);
        }
    }
};
