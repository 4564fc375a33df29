// The kernels of decode_step.cuh for weights of any types and large heads, as a translation unit.
#include "decode_step.cuh"

DECODE_STEP(96, any, ANY_TYPE)
DECODE_STEP(128, any, ANY_TYPE)
