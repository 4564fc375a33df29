// A block's weights on their way: a ring of slots in shared memory.
//
// Which tiles a block multiplies is known before the step begins, so one thread goes through all
// stages and layers ahead of the others and keeps the ring full by bulk copies (cp.async.bulk,
// completing on an mbarrier), across every exchange between blocks. A copy, or piece, is up to
// PIECE_UNITS consecutive units of one tile; the warps that multiply its units give the slot back.
#pragma once
#include "step_plan.cuh"

constexpr int MAX_SLOTS = 64;
// Pieces under way at a time. More would only stand in line, before every small read of an
// exchange; this many keep the memory busy.
constexpr int WINDOW = 4;

// Places in shared memory, as the instructions below want them.
typedef uint32_t Shared;
DEVICE Shared shared_address(const void* p) { return Shared(__cvta_generic_to_shared(p)); }

DEVICE void barrier_init(Shared bar, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
DEVICE void barrier_arrive(Shared bar, int arrivals) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
DEVICE void barrier_wait(Shared bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}"
        ::"r"(bar), "r"(parity) : "memory");
}
DEVICE void bulk_copy(Shared to, const uint8_t* from, int bytes, Shared bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}

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

    static constexpr int DONE = 8 * MAX_SLOTS;  // from a slot's barrier to its other one
    static constexpr int ASKED = 16 * MAX_SLOTS;

    DEVICE Slot slot_of(int p) const {
        uint32_t round = slots.of(p);
        int slot = p - round * slots.by;
        return {come + 8 * slot, round, slot * slot_bytes};
    }
    // `asked`: what the warp has last seen of the barriers' count.
    DEVICE void wait(const Slot& slot, int p, int& asked) const {
        while (p >= asked)
            asm volatile("ld.volatile.shared.s32 %0, [%1];" : "=r"(asked) : "r"(come + ASKED) : "memory");
        barrier_wait(slot.come, slot.round & 1);
    }
    // Some units of a piece are done with; to be said of PIECE_UNITS in all.
    DEVICE void release(const Slot& slot, int units) const { barrier_arrive(slot.come + DONE, units); }

    DEVICE void fetch(int p, const uint8_t* from, int bytes) const {
        Slot slot = slot_of(p);
        if (slot.round) barrier_wait(slot.come + DONE, slot.round - 1 & 1);
        if (p >= WINDOW) {
            Slot before = slot_of(p - WINDOW);
            barrier_wait(before.come, before.round & 1);
        }
        bulk_copy(shared_address(room) + slot.at, from, bytes, slot.come);
        asm volatile("st.volatile.shared.s32 [%0], %1;" ::"r"(come + ASKED), "r"(p + 1) : "memory");
    }
};

// All pieces of this block, by one thread.
DEVICE void feed(const Plan& plan, const Ring& ring) {
    int p = 0;
    for (int layer = 0, stage = QKV; layer <= plan.a.n_layers;) {
        const Shape& s = plan.shapes[stage];
        for (int t = 0; t < s.tiles; t++) {
            Place at = plan.place(min(layer, plan.a.n_layers - 1), stage, t);
            int units = s.units.by, unit = unit_bytes(at.part->type);
            const uint8_t* from = at.part->weight + int64_t(at.tile) * units * unit;
            for (int u = 0; u < units; u += s.piece.by) {
                int bytes = min(int(s.piece.by), units - u) * unit;
                ring.fetch(p++, from, bytes);
                from += bytes;
            }
        }
        if (stage == DOWN || stage == HEAD) {
            layer++;
            stage = layer < plan.a.n_layers ? QKV : HEAD;
        } else {
            stage++;
        }
    }
}
