// The kernel of embed.cuh: one block a token, which reads one row and writes n_embd floats.
#pragma once
#include "embed.cuh"
#include "hopper.cuh"

extern "C" __global__ void embed(const __grid_constant__ EmbedArgs a) {
    launch_dependents();
    grid_dependency_wait();
    embed_row(a, blockIdx.x);
}
