// The progress of a step, in device memory, for the host to read when a step does not end
// (device/cuda/board.rs). The copy engine can fetch it while a kernel waits for ever.
//
// One thread stores a word as it passes a place; no kernel reads any of it.
#pragma once
#include "common.cuh"

enum Board : int {
    BOARD_STEP = 0,    // the step whose inputs have come
    BOARD_STAGE = 1,   // the launch begun last; 0: none yet
    BOARD_TAG = 2,     // the tag of decode_step.cu's first exchange; 0: it has not begun
    BOARD_BLOCKS = 4,  // of each of its blocks the tag that it waits for, or works with by now
};

DEVICE void post(uint32_t* at, uint32_t v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(v)); }
