// The kernel of embed.cuh: one block a token; reads one row, writes n_embd floats.
#pragma once
#include "embed.cuh"
#include "hopper.cuh"

extern "C" __global__ void embed(const __grid_constant__ EmbedArgs a) {
    let_next_begin();
    wait_for_previous();
    embed_row(a, blockIdx.x);
}
