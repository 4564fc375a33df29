// One translation unit of all operations, so that they share one fatbin.
#include "repack.cu"
#include "embed.cu"
#include "norm.cu"
#include "matmul_few.cu"
#include "matmul_many.cu"
#include "rope_kv.cu"
#include "attention.cu"
#include "argmax.cu"
