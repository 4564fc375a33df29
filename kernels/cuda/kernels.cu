// The operations that are launched one by one, as one translation unit; decode_step.cu is another
// and takes what it shares from these files as device functions.
#include "repack.cu"
#include "embed.cu"
#include "norm.cu"
#include "matmul_few.cu"
#include "matmul_many.cu"
#include "rope_kv.cu"
#include "attention.cu"
#include "argmax.cu"
#include "answer.cu"
#include "sample.cu"
#include "arrive.cu"
