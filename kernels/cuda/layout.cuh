// A struct that the host fills has its size, and the offset of every field, written down below it. The
// compiler of the kernels checks the struct against that, and so does the compiler of the host, which reads
// the same lines (gpu-child/src/device/cuda/headers.rs).
#pragma once
#include <stddef.h>

#define LAYOUT(T, SIZE, FIELDS)                                                    \
    struct LayoutOf##T {                                                           \
        using It = T;                                                              \
        static_assert(sizeof(It) == SIZE FIELDS, #T " is not laid out as is said"); \
    };
#define AT(FIELD, OFFSET) &&offsetof(It, FIELD) == OFFSET
