// The operations that are small, as one translation unit: a product, attention, and everything of a mixture of experts are
// others, and take the code that they share from headers.
#include "repack.cu"
#include "embed.cu"
#include "bound.cu"
#include "norm.cu"
#include "gated_rows.cu"
#include "rope_kv.cu"
#include "argmax.cu"
#include "checksum.cu"
#include "kv_pages.cu"
#include "tokens_to_host.cu"
#include "sample.cu"
#include "scatter_inputs.cu"
