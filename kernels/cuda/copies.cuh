// Copies into shared memory that run beside the threads that asked for them (PTX: cp.async).
#pragma once
#include "common.cuh"

DEVICE void copy_async(void* shared, const void* global, bool real) {
    uint32_t to = uint32_t(__cvta_generic_to_shared(shared));
    int bytes = real ? 16 : 0;  // 0 fills with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
}
DEVICE void copies_done() { asm volatile("cp.async.commit_group;"); }
// All but the last LEFT groups of copies have come.
template <int LEFT> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
