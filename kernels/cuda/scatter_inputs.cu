// The inputs of a step, from pinned memory, where the host has put them one behind the other, to their
// places on the device. A row whose token the host did not know yet gets the one that the step before
// drew.
//
// A thread moves one word; only what the step needs is read over the bus.
#pragma once
#include "drawn_tokens.cuh"
#include "board.cuh"

// Rows and gather; tiles of each kind of heads, and page tables of each group of layers, of which there are 24 at most; rows,
// sequences and pages of states.
constexpr int INPUTS = 31;

struct ScatterInputsArgs {
    const int* from;
    int* to[INPUTS];
    int words[INPUTS];
    DrawnTokens before;  // of the step before, for rows that ask for one
    uint32_t* board;
    uint32_t step;
};
LAYOUT(ScatterInputsArgs, 424, AT(from, 0) AT(to, 8) AT(words, 256) AT(before, 384) AT(board, 408) AT(step, 416))

extern "C" __global__ void __launch_bounds__(256) scatter_inputs(const __grid_constant__ ScatterInputsArgs a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, part = 0;
    const int* from = a.from + i;
    if (i == 0) {
        post(a.board + BOARD_STEP, a.step);
        post(a.board + BOARD_STAGE, 0);
        post(a.board + BOARD_TAG, 0);
    }
    while (part < INPUTS && i >= a.words[part]) i -= a.words[part++];
    if (part == INPUTS) return;
    int word = *from;
    // A row begins with its token; below zero it is the complement of a place among the draws.
    if (part == 0 && i % (sizeof(Row) / sizeof(int)) == 0 && word < 0) {
        uint32_t id = drawn_token(a.before, ~word);
        // The host is about to be told of a fault: any token will do.
        word = id == NO_TOKEN ? 0 : int(id);
    }
    a.to[part][i] = word;
}
