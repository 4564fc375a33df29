// A block's weights on their way: a ring of slots in shared memory.
//
// Which tiles a block multiplies is known before the step begins, so one thread goes through all
// stages and layers ahead of the others and keeps the ring full by bulk copies (cp.async.bulk,
// completing on an mbarrier), across every exchange between blocks. A copy, or piece, is up to
// PIECE_UNITS consecutive units of one tile; the warps that multiply its units give the slot back.
#pragma once
#include "bulk.cuh"
#include "step_plan.cuh"

constexpr int MAX_SLOTS = 64;

// Of the slots: a piece has come; all its units are done with. A barrier tells a round from the
// next one only, so nobody waits for a piece that has not been asked for.
struct Barriers {
    Word come[MAX_SLOTS], done[MAX_SLOTS];
    int asked;  // pieces

    DEVICE void init(int slots) {
        if (threadIdx.x == 0) asked = 0;
        if (threadIdx.x < slots) {
            barrier_init(shared_address(come + threadIdx.x), 1);
            barrier_init(shared_address(done + threadIdx.x), PIECE_UNITS);
        }
    }
};

// A piece's slot.
struct Slot {
    Shared come;
    uint32_t round;  // how often the ring went around before it
    int at;          // of its bytes in the ring
};

struct Ring {
    const uint8_t* room;
    Shared come;
    int slot_bytes;
    Divisor slots;

    static constexpr int DONE = BARRIER_BYTES * MAX_SLOTS;  // from a slot's barrier to its other one
    static constexpr int ASKED = 2 * BARRIER_BYTES * MAX_SLOTS;

    DEVICE Slot slot_of(int p) const {
        uint32_t round = slots.of(p);
        int slot = p - round * slots.by;
        return {come + BARRIER_BYTES * slot, round, slot * slot_bytes};
    }
    // `asked`: what the warp has last seen of the barriers' count.
    DEVICE void wait(const Slot& slot, int p, int& asked) const {
        while (p >= asked)
            asm volatile("ld.volatile.shared.s32 %0, [%1];" : "=r"(asked) : "r"(come + ASKED) : "memory");
        barrier_wait(slot.come, slot.round & 1);
    }
    // Some units of a piece are done with; to be said of PIECE_UNITS in all.
    DEVICE void release(const Slot& slot, int units) const { barrier_arrive(slot.come + DONE, units); }
};

// All pieces of this block, by one thread. It has some 700 cycles for a piece where memory is what the
// step waits for, so its inner loop does nothing that can be known before.
struct Feeder {
    const Plan& plan;
    Shared come_first, come_end, to_first;
    Shared come, to;     // of the next piece
    uint32_t parity;     // of the round before its own; the first one finds its slots free
    Shared late;         // of the piece `window` before, which must have come
    uint32_t late_parity;
    int asked;

    DEVICE Feeder(const Plan& p, const Ring& ring)
        : plan(p), come_first(ring.come), come_end(come_first + BARRIER_BYTES * ring.slots.by),
          to_first(shared_address(ring.room)), come(come_first), to(to_first), parity(1),
          late(come_first), late_parity(0), asked(0) {}

    struct Matrix {
        const uint8_t* weight;
        int64_t tile_bytes;
        int piece_bytes, rest_bytes;  // of a tile's last piece
    };
    DEVICE Matrix matrix(const Part& part, const Shape& s) const {
        int unit = unit_bytes(part.ty), units = s.units.by, piece = s.piece.by;
        return {part.weight, int64_t(units) * unit, piece * unit, (units - (s.pieces - 1) * piece) * unit};
    }
    DEVICE void tile(const Matrix& m, int tile, int pieces) {
        const uint8_t* from = m.weight + tile * m.tile_bytes;
#pragma unroll 1
        for (; pieces > 0; pieces--) {
            int bytes = pieces > 1 ? m.piece_bytes : m.rest_bytes;
            barrier_wait(come + Ring::DONE, parity);
            if (asked >= plan.a.shared.window) {
                barrier_wait(late, late_parity);
                late += BARRIER_BYTES;
                if (late == come_end) late = come_first, late_parity ^= 1;
            }
            barrier_expect(come, bytes);
            copy_bulk(to, from, bytes, come);
            asm volatile("st.volatile.shared.s32 [%0], %1;" ::"r"(come_first + Ring::ASKED), "r"(++asked) : "memory");
            from += bytes;
            come += BARRIER_BYTES;
            to += plan.a.shared.slot_bytes;
            if (come != come_end) continue;
            come = come_first;
            to = to_first;
            parity ^= 1;
        }
    }

    template <int STAGE> DEVICE void stage(const Part* parts) {
        const Shape s = plan.shapes[STAGE];
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
