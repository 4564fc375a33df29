// The kernels of decode_step.cuh for weights of one type, as a translation unit.
#include "decode_step.cuh"

DECODE_STEP(64, F16, F16)
DECODE_STEP(128, F16, F16)
DECODE_STEP(64, Q8_0, Q8_0)
DECODE_STEP(128, Q8_0, Q8_0)
