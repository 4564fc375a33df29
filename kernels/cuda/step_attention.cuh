// The attention of a decode step: rotation, the new position's keys and values, the heads of one
// (row, key-value head) pair by one block.
//
// Pages of positions before this one are copied to shared memory while the queries are still being
// computed elsewhere. The functions are those of rope_kv.cuh and attention.cuh; their pointers are
// moved so that the indices they compute fall into shared memory.
#pragma once
#include "step_plan.cuh"

constexpr int MAX_PAGES = 128;  // of a sequence, each a split

// What attention asks of a row, read once a step.
struct Local {
    Row rows[STEP_ROWS];
    int tables[STEP_ROWS][MAX_PAGES];
    float2 turns[STEP_ROWS][MAX_HEAD / 2];
    int copies[MAX_PAGES];  // page i of a sequence lies i pages on
};
constexpr int LOCAL_BYTES = 8192;  // at most
static_assert(sizeof(Local) <= LOCAL_BYTES);

// Among the warps that compute.
DEVICE void sync_computing() { asm volatile("bar.sync 1, %0;" ::"n"(STEP_THREADS) : "memory"); }

DEVICE void touch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

struct Attention {
    const StepArgs& a;
    const StepLayer* layers;
    Local& local;
    uint8_t* room;
    int room_bytes;

    DEVICE void remember() {
        for (int row = 0; row < a.rows; row++) {
            Row r = a.rope.rows[row];
            if (threadIdx.x == 0) local.rows[row] = r;
            for (int i = threadIdx.x; i <= r.position / PAGE; i += STEP_THREADS)
                local.tables[row][i] = a.rope.kv.tables[r.table + i];
            for (int i = threadIdx.x; i < a.rope.dims / 2; i += STEP_THREADS)
                local.turns[row][i] = a.rope.turns[int64_t(r.position) * (a.rope.dims / 2) + i];
        }
        for (int i = threadIdx.x; i < MAX_PAGES; i += STEP_THREADS) local.copies[i] = i;
        sync_computing();
    }

    DEVICE KvArgs kv_of(int layer) const {
        KvArgs kv = a.rope.kv;
        kv.layer_offset += layer * a.layer_halves;
        return kv;
    }

    // Where a pair's things lie in shared memory.
    template <int HD> struct Room {
        static constexpr int PAGE_HALVES = 2 * PAGE * HD;  // keys, then values

        float* heads;      // [warps][HD], then those of the new key and value
        __half* queries;   // [group][HD]
        __half* pages;     // [splits][PAGE_HALVES]
        float* partials;   // [group][splits][HD + 2]
        bool has_pages, has_partials;

        DEVICE Room(uint8_t* room, int bytes, int group, int splits) {
            heads = reinterpret_cast<float*>(room);
            queries = reinterpret_cast<__half*>(heads + (group + 2) * HD);
            partials = reinterpret_cast<float*>(queries + group * HD);
            pages = reinterpret_cast<__half*>(partials + ((group * splits * (HD + 2) + 3) & ~3));
            int used = int(reinterpret_cast<uint8_t*>(pages) - room);
            has_partials = used <= bytes;
            has_pages = used + splits * PAGE_HALVES * 2 <= bytes;
        }
    };

    // Copies the pages of a pair, or asks for them where they do not fit.
    template <int HD> DEVICE void fetch(int layer, int row, int kv) const {
        constexpr int LINES = PAGE * HD * 2 / 16;
        int group = a.rope.heads / a.rope.kv_heads, splits = local.rows[row].position / SPLIT + 1;
        Room<HD> my(room, room_bytes, group, splits);
        KvArgs at = kv_of(layer);
#pragma unroll 1
        for (int s = threadIdx.x / 32; s < splits; s += STEP_WARPS) {
            const __half* keys = key_at(at, local.tables[row][s], kv, HD);
            const __half* values = value_at(at, local.tables[row][s], kv, a.rope.kv_heads, HD);
            __half* to = my.pages + s * my.PAGE_HALVES;
#pragma unroll 4
            for (int i = threadIdx.x & 31; i < LINES; i += 32)
                if (my.has_pages) {
                    copy_async(to + 8 * i, keys + 8 * i);
                    copy_async(to + PAGE * HD + 8 * i, values + 8 * i);
                } else if ((i & 7) == 0) {
                    touch(keys + 8 * i);
                    touch(values + 8 * i);
                }
        }
        asm volatile("cp.async.commit_group;");
    }

    DEVICE static void copy_async(__half* to, const __half* from) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
            ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from) : "memory");
    }

    template <int HD> DEVICE void attend(int layer, int row, int kv) const {
        const StepLayer& l = layers[layer];
        int group = a.rope.heads / a.rope.kv_heads, tiles = (group + 15) / 16;
        int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
        int position = local.rows[row].position, splits = position / SPLIT + 1;
        int64_t first_head = int64_t(row) * a.rope.heads + kv * group;
        Room<HD> my(room, room_bytes, group, splits);

        RopeArgs rope = a.rope;
        rope.head_dim = HD;
        rope.rows = local.rows;
        rope.turns = local.turns[row] - int64_t(position) * (rope.dims / 2);
        rope.q_norm = l.q_norm;
        rope.k_norm = l.k_norm;
        rope.q = my.queries - first_head * HD;
        rope.kv = kv_of(layer);
        rope.kv.tables = local.tables[row] - local.rows[row].table;
        int width = (rope.heads + 2 * rope.kv_heads) * HD;
        post_block(a, number_of(a, layer, BY_QKV));
#pragma unroll 1
        for (int h = warp; h < group + 2; h += STEP_WARPS) {
            int head = h < group ? kv * group + h : rope.heads + (h - group) * rope.kv_heads + kv;
            const Word* from = a.exchange.heard(a.exchange.qkv) + row * row_words(width) + word_of(head * HD + 4 * lane);
            float* mine = my.heads + h * HD;
            Four f;
            while (4 * lane < HD && !hear_four(f, from, number_of(a, layer, BY_QKV))) {}
            if (4 * lane < HD)
                *reinterpret_cast<float4*>(mine + 4 * lane) = make_float4(f.v[0], f.v[1], f.v[2], f.v[3]);
            __syncwarp();
            keep_head(rope, mine, row, head);
        }
        AttentionArgs look = a.attention;
        look.q = rope.q;
        look.kv = rope.kv;
        Tile tile = {row, 0, 0, position, local.rows[row].table};
        int kv_head = kv;
        if (my.has_partials) {
            look.splits = splits;
            look.partial = my.partials - first_head * splits * (HD + 2);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        sync_computing();
        if (my.has_pages) {
            if (warp == (splits - 1) % STEP_WARPS) add_position<HD>(my, group, splits - 1, position % PAGE);
            if (tiles > 1) sync_computing();  // else only this warp reads that page
            // One key-value head by itself, of copied pages.
            look.heads = group;
            look.kv_heads = 1;
            look.q = my.queries - row * group * HD;
            look.partial = my.partials - int64_t(row) * group * splits * (HD + 2);
            look.kv = {my.pages, uint64_t(my.PAGE_HALVES), 0, local.copies};
            tile.table = 0;
            kv_head = 0;
        }
#pragma unroll 1
        for (int i = warp; i < splits * tiles; i += STEP_WARPS) {
            int s = tiles == 1 ? i : i / tiles;
            tile.first = 16 * (i - s * tiles);
            tile.count = min(16, group - tile.first);
            attend_split<HD, true>(look, tile, kv_head, s);
        }
        sync_computing();
        int64_t first = my.has_pages ? int64_t(row) * group : first_head;
#pragma unroll 1
        for (int h = warp; h < group; h += STEP_WARPS) {
            Word* to = a.exchange.attended + row * row_words(a.rope.heads * HD);
            int column = (kv * group + h) * HD;
            attend_merge(look, first + h, position, HD, [&](int i, float v) {
                a.exchange.tell_all(to + word_of(column + i), v, number_of(a, layer, BY_ATTENTION));
            });
        }
        sync_computing();
    }

    // The new key and value into their copied page.
    template <int HD> DEVICE void add_position(const Room<HD>& my, int group, int page, int slot) const {
        __half* to = my.pages + page * my.PAGE_HALVES;
        const float *key = my.heads + group * HD, *value = key + HD;
#pragma unroll 1
        for (int i = threadIdx.x & 31; i < HD; i += 32) {
            to[slot * HD + i] = __float2half_rn(key[i]);
            to[PAGE * HD + i * PAGE + slot] = __float2half_rn(value[i]);
        }
        __syncwarp();
    }

    template <int HD> DEVICE void run(int block) {
        remember();
        int units = a.rows * a.rope.kv_heads, unit = block;
        if (unit >= units) return;
        int row = unit / a.rope.kv_heads, kv = unit - row * a.rope.kv_heads;
        fetch<HD>(0, row, kv);
#pragma unroll 1
        for (int layer = 0; layer < a.n_layers;) {
            attend<HD>(layer, row, kv);
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
