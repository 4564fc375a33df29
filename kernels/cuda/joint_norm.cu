// RMS norms of queries and of keys over all heads of a row, in place, in front of rope_kv.cu.
//
// The grid is (rows, 2): a block has the queries of a row or its keys. A thread adds the squares of every JOINT_NORM_THREADS-th
// column, a warp its lanes' sums by a butterfly, and each thread those of the warps in ascending order.
#pragma once
#include "hopper.cuh"

struct JointNormArgs {
    float* qkv;           // [rows, stride] queries, keys, values
    const float* q_norm;  // [q_width]
    const float* k_norm;  // [kv_width]
    int stride, q_width, kv_width;
    float eps;
};
LAYOUT(JointNormArgs, 40, AT(qkv, 0) AT(q_norm, 8) AT(k_norm, 16) AT(stride, 24) AT(q_width, 28) AT(kv_width, 32) AT(eps, 36))

constexpr int JOINT_NORM_THREADS = 256;

extern "C" __global__ void __launch_bounds__(JOINT_NORM_THREADS) joint_norm(const __grid_constant__ JointNormArgs a) {
    __shared__ float sums[JOINT_NORM_THREADS / 32];
    launch_dependents();
    grid_dependency_wait();
    const bool of_keys = blockIdx.y > 0;
    float* x = a.qkv + int64_t(blockIdx.x) * a.stride + (of_keys ? a.q_width : 0);
    const float* weight = of_keys ? a.k_norm : a.q_norm;
    const int width = of_keys ? a.kv_width : a.q_width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += JOINT_NORM_THREADS) sum = __fmaf_rn(x[i], x[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = sums[0];
    for (int w = 1; w < JOINT_NORM_THREADS / 32; w++) sum = __fadd_rn(sum, sums[w]);
    const float inverse = __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, float(width)), a.eps));
    for (int i = threadIdx.x; i < width; i += JOINT_NORM_THREADS) x[i] = __fmul_rn(__fmul_rn(x[i], inverse), weight[i]);
}
