// The pipeline of a block's weights: a ring of slots in shared memory, one producer, many consumers.
//
// The tiles that a block multiplies are known before the step begins. So one thread, the producer, goes
// through all stages and layers ahead of the consumers and keeps the ring full by bulk copies
// (cp.async.bulk, completing on an mbarrier); it never waits for an exchange between blocks. A copy, or
// piece, is up to PIECE_UNITS consecutive units of one tile; the warps that multiply its units release the
// slot.
#pragma once
#include "bulk.cuh"
#include "step_plan.cuh"

constexpr int MAX_SLOTS = 64;

// The barriers of the slots: `full` when a piece has come, `empty` when all its units are done with. A
// barrier tells a round only from the next one, so a piece is waited for only when its copy was issued.
struct Barriers {
    Word full[MAX_SLOTS], empty[MAX_SLOTS];
    int issued;  // copies

    DEVICE void init(int slots) {
        if (threadIdx.x == 0) issued = 0;
        if (threadIdx.x < slots) {
            barrier_init(shared_address(full + threadIdx.x), 1);
            barrier_init(shared_address(empty + threadIdx.x), PIECE_UNITS);
        }
    }
};

// A piece's slot.
struct Slot {
    Shared full;
    uint32_t round;  // how often the ring went around before it
    int at;          // of its bytes in the ring
};

struct Ring {
    const uint8_t* smem;
    Shared full;
    int slot_bytes;
    Divisor slots;

    static constexpr int EMPTY = BARRIER_BYTES * MAX_SLOTS;  // from a slot's barrier to its other one
    static constexpr int ISSUED = 2 * BARRIER_BYTES * MAX_SLOTS;

    DEVICE Slot slot_of(int p) const {
        uint32_t round = slots.of(p);
        int slot = p - round * slots.by;
        return {full + BARRIER_BYTES * slot, round, slot * slot_bytes};
    }
    // Waits for piece `p`. `issued` is the count of copies as the warp has last seen it.
    DEVICE void wait(const Slot& slot, int p, int& issued) const {
        while (p >= issued)
            asm volatile("ld.volatile.shared.s32 %0, [%1];" : "=r"(issued) : "r"(full + ISSUED) : "memory");
        barrier_wait(slot.full, slot.round & 1);
    }
    // Releases some units of a piece, which makes PIECE_UNITS arrivals in all.
    DEVICE void release(const Slot& slot, int units) const { barrier_arrive(slot.full + EMPTY, units); }
};

// The producer: all pieces of this block, by one thread. Where the step waits for memory the time for a
// piece is short, so the inner loop computes nothing that can be known before.
struct Producer {
    const Plan& plan;
    Shared full_first, full_end, to_first;
    Shared full, to;     // of the next piece
    uint32_t parity;     // of the round before its own; the first one finds its slots free
    Shared late;         // `full` of the piece `window` before, which must have come
    uint32_t late_parity;
    int issued;

    DEVICE Producer(const Plan& p, const Ring& ring)
        : plan(p), full_first(ring.full), full_end(full_first + BARRIER_BYTES * ring.slots.by),
          to_first(shared_address(ring.smem)), full(full_first), to(to_first), parity(1),
          late(full_first), late_parity(0), issued(0) {}

    struct Matrix {
        const uint8_t* weight;
        int64_t tile_bytes;
        int piece_bytes, rest_bytes;  // of a tile's last piece
    };
    DEVICE Matrix matrix(const Part& part, const StageShape& s) const {
        int unit = unit_bytes(part.ty), units = s.units.by, piece = s.piece.by;
        return {part.weight, int64_t(units) * unit, piece * unit, (units - (s.pieces - 1) * piece) * unit};
    }
    DEVICE void tile(const Matrix& m, int tile, int pieces) {
        const uint8_t* from = m.weight + tile * m.tile_bytes;
#pragma unroll 1
        for (; pieces > 0; pieces--) {
            int bytes = pieces > 1 ? m.piece_bytes : m.rest_bytes;
            barrier_wait(full + Ring::EMPTY, parity);
            if (issued >= plan.a.shared.window) {
                barrier_wait(late, late_parity);
                late += BARRIER_BYTES;
                if (late == full_end) late = full_first, late_parity ^= 1;
            }
            barrier_expect(full, bytes);
            copy_bulk(to, from, bytes, full);
            asm volatile("st.volatile.shared.s32 [%0], %1;" ::"r"(full_first + Ring::ISSUED), "r"(++issued) : "memory");
            from += bytes;
            full += BARRIER_BYTES;
            to += plan.a.shared.slot_bytes;
            if (full != full_end) continue;
            full = full_first;
            to = to_first;
            parity ^= 1;
        }
    }

    template <int STAGE> DEVICE void stage(const Part* parts) {
        const StageShape s = plan.shapes[STAGE];
        const int tiles = STAGE == GATE_UP ? s.tiles / 2 : s.tiles;
        if (STAGE == QKV) {
            Matrix three[3] = {matrix(parts[0], s), matrix(parts[1], s), matrix(parts[2], s)};
            const int k = parts[0].tiles, v = k + parts[1].tiles;
            for (int t = 0, n = s.first; t < tiles; t++, n += plan.blocks())
                if (n < k) tile(three[0], n, s.pieces);
                else if (n < v) tile(three[1], n - k, s.pieces);
                else tile(three[2], n - v, s.pieces);
        } else {
            Matrix m = matrix(parts[0], s), up = m;
            if (STAGE == GATE_UP) up = matrix(parts[1], s);
            for (int t = 0, n = s.first; t < tiles; t++, n += plan.blocks()) {
                tile(m, n, s.pieces);
                if (STAGE == GATE_UP) tile(up, n, s.pieces);
            }
        }
    }
    DEVICE void run() {
        for (int layer = 0; layer < plan.a.n_layers; layer++) {
            const Part* parts = plan.layers[layer].parts;
            stage<QKV>(parts);
            stage<OUTPUT>(parts + 3);
            stage<GATE_UP>(parts + 4);
            stage<DOWN>(parts + 6);
        }
        stage<HEAD>(&plan.a.head);
    }
};
