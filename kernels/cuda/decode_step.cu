// The kernels of decode_step.cuh for weights of one type and for k-quants (Q4_K and Q5_K are packed as Q4_1 and Q5_1), as a translation unit.
#include "decode_step.cuh"

DECODE_STEP(64, F16, F16)
DECODE_STEP(128, F16, F16)
DECODE_STEP(64, Q8_0, Q8_0)
DECODE_STEP(128, Q8_0, Q8_0)
DECODE_STEP(64, K, Q4_1, Q5_1, Q6_K)
DECODE_STEP(128, K, Q4_1, Q5_1, Q6_K)
