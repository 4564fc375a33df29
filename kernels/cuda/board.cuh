// Where a step stands, left in device memory for whoever asks why it does not end (host:
// device/cuda/board.rs). The copy engine can fetch it while a kernel waits for ever.
//
// One thread stores a word as it passes, and nobody on the device reads any of it.
#pragma once
#include "common.cuh"

enum Board : int {
    BOARD_STEP = 0,    // that the inputs of which have come
    BOARD_STAGE = 1,   // of launches, the one begun last; 0: none yet
    BOARD_NUMBER = 2,  // of decode_step.cu's first exchange; 0: it has not begun
    BOARD_BLOCKS = 4,  // of each of its blocks: the number that it waits for, or works with by now
};

DEVICE void post(uint32_t* at, uint32_t v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(v)); }
