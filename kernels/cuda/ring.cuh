// The pipeline of a block's weights: a ring of slots in shared memory, one producer, many consumers.
//
// The tiles that a block multiplies are known before the step begins. So one thread, the producer, goes
// through all stages and layers ahead of the consumers and keeps the ring full by bulk copies
// (cp.async.bulk, completing on an mbarrier); it never waits for an exchange between blocks. A piece is a
// few consecutive units of two tiles, those of the second behind those of the first; the warps that
// multiply its units release the slot. A short piece has fewer units than its barrier has arrivals: the rest come from the
// producer, or with the last unit.
#pragma once
#include "bulk.cuh"
#include "step_plan.cuh"

constexpr int MAX_SLOTS = 64;

// The barriers of the slots: `full` when a piece has come, `empty` when all its units are done with. A
// barrier tells a round only from the next one, so a piece is waited for only when its copy was issued.
struct Barriers {
    Word full[MAX_SLOTS], empty[MAX_SLOTS];
    int issued;  // copies
    Shared ring;

    DEVICE void init(const SharedPlan& plan, Shared at) {
        if (threadIdx.x == 0) issued = 0, ring = at;
        if (threadIdx.x < plan.slots) {
            barrier_init(shared_address(full + threadIdx.x), 1);
            barrier_init(shared_address(empty + threadIdx.x), plan.piece_units);
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
    Shared memory, full;
    int slot_bytes;
    Divisor slots;

    // The address is read from shared memory, so it lies in a register of each thread; a slot's size, which is the same for all
    // threads, can be another operand of the same instruction then, and is not loaded first.
    DEVICE Ring(const SharedPlan& plan, Barriers& barriers)
        : full(shared_address(&barriers)), slot_bytes(plan.slot_bytes), slots(plan.slots) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(memory) : "r"(shared_address(&barriers.ring)) : "memory");
    }

    static constexpr int EMPTY = BARRIER_BYTES * MAX_SLOTS;  // from a slot's barrier to its other one
    static constexpr int ISSUED = 2 * BARRIER_BYTES * MAX_SLOTS;

    DEVICE Slot slot_of(int p) const {
        uint32_t round = slots.of(p);
        int slot = p - round * slots.by;
        return {full + BARRIER_BYTES * slot, round, slot * slot_bytes};
    }
    DEVICE void count_issued(int& issued) const {
        asm volatile("ld.volatile.shared.s32 %0, [%1];" : "=r"(issued) : "r"(full + ISSUED) : "memory");
    }
    // Waits for piece `p`. `issued` is the count of copies as the warp has last seen it.
    DEVICE void wait(const Slot& slot, int p, int& issued) const {
        while (p >= issued) count_issued(issued);
        barrier_wait(slot.full, slot.round & 1);
    }
    // Whether piece `p` has come, as far as `issued` tells, which is brought up to date for the next piece: what this
    // takes lies beside other instructions.
    DEVICE bool has(const Slot& slot, int p, int& issued) const {
        const bool has = barrier_has_ended(slot.full, slot.round & 1) & (p < issued);
        count_issued(issued);
        return has;
    }
    // Releases some units of a piece, which makes `piece_units` arrivals in all.
    DEVICE void release(const Slot& slot, int units = 1) const { barrier_arrive(slot.full + EMPTY, units); }
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
          to_first(ring.memory), full(full_first), to(to_first), parity(1),
          late(full_first), late_parity(0), issued(0) {}

    struct Matrix {
        const uint8_t* weight;
        int64_t tile_bytes;
        int piece_bytes, rest_bytes;      // of a tile, and in its last piece
        int piece_missing, rest_missing;  // units
    };
    DEVICE Matrix matrix(const Part& part, const StageShape& s) const {
        int unit = unit_bytes(part.ty), units = s.units.by, piece = s.piece.by;
        const int rest = units - (s.pieces - 1) * piece, most = plan.a.shared.piece_units;
        return {part.weight, int64_t(units) * unit, piece * unit, rest * unit, most - piece, most - rest};
    }
    DEVICE static const uint8_t* tile(const Matrix& m, int tile) { return m.weight + tile * m.tile_bytes; }

    // All pieces of two tiles of matrices like `m`, or of one if there is no other. FILLS: what a short piece lacks is
    // released here. Consumers need not look for a piece's last unit then, but a producer that has to catch up is slower.
    template <bool FILLS = true> DEVICE void pair(const Matrix& m, const uint8_t* one, const uint8_t* other, int pieces) {
#pragma unroll 1
        for (; pieces > 0; pieces--) {
            const int bytes = pieces > 1 ? m.piece_bytes : m.rest_bytes, missing = pieces > 1 ? m.piece_missing : m.rest_missing;
            barrier_wait(full + Ring::EMPTY, parity);
            if (FILLS && missing) barrier_arrive(full + Ring::EMPTY, missing);
            if (issued >= plan.a.shared.window) {
                barrier_wait(late, late_parity);
                late += BARRIER_BYTES;
                if (late == full_end) late = full_first, late_parity ^= 1;
            }
            barrier_expect(full, other ? 2 * bytes : bytes);
            copy_bulk(to, one, bytes, full);
            if (other) {
                copy_bulk(to + m.piece_bytes, other, bytes, full);
                other += bytes;
            }
            asm volatile("st.volatile.shared.s32 [%0], %1;" ::"r"(full_first + Ring::ISSUED), "r"(++issued) : "memory");
            one += bytes;
            full += BARRIER_BYTES;
            to += plan.a.shared.slot_bytes;
            if (full != full_end) continue;
            full = full_first;
            to = to_first;
            parity ^= 1;
        }
    }

    template <int STAGE> DEVICE void stage(int layer, const Part* parts) {
        const StageShape s = plan.shapes[STAGE];
        if (STAGE == QKV) {
#pragma unroll 1
            for (int t = 0; t < s.tiles; t += 2) {
                StageTile a = plan.place(layer, STAGE, t), b = plan.place(layer, STAGE, min(t + 1, s.tiles - 1));
                Matrix m = matrix(*a.part, s), n = matrix(*b.part, s);
                bool both = plan.is_pair(layer, STAGE, t);
                pair(m, tile(m, a.tile), both ? tile(n, b.tile) : nullptr, s.pieces);
                if (!both && t + 1 < s.tiles) pair(n, tile(n, b.tile), nullptr, s.pieces);
            }
            return;
        }
        Matrix m = matrix(parts[0], s), up = m;
        if (STAGE == GATE_UP) up = matrix(parts[1], s);
        const int step = plan.blocks();
        for (int t = 0, n = s.first; t < s.tiles; t += 2) {
            const uint8_t* one = tile(m, n);
            if (STAGE != GATE_UP) {
                pair(m, one, t + 1 < s.tiles ? tile(m, n + step) : nullptr, s.pieces);
                n += 2 * step;
                continue;
            }
            const uint8_t* other = tile(up, n);
            bool both = parts[0].ty == parts[1].ty;
            pair(m, one, both ? other : nullptr, s.pieces);
            if (!both) pair(up, other, nullptr, s.pieces);
            n += step;
        }
    }
    DEVICE void run() {
        for (int layer = 0; layer < plan.a.n_layers; layer++) {
            const Part* parts = plan.layers[layer].parts;
            stage<QKV>(layer, parts);
            stage<OUTPUT>(layer, parts + 3);
            stage<GATE_UP>(layer, parts + 4);
            stage<DOWN>(layer, parts + 6);
        }
        stage<HEAD>(0, &plan.a.head);
    }
};
