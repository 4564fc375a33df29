// The kernels of decode_step.cuh for weights of any types and small heads, as a translation unit.
#include "decode_step.cuh"

DECODE_STEP(32, any, ANY_TYPE)
DECODE_STEP(64, any, ANY_TYPE)
