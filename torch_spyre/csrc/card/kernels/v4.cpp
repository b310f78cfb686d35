// The kernels for x86-64-v4 (AVX-512).
#include "versions.h"

#if defined(__x86_64__)
#include <immintrin.h>

// GCC does not define __AVX512F__ and the like for a target that a pragma chooses by `arch`.
#define SPYRE_FMA_WIDTH 16  // floats of the widest fused multiply-add
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")

namespace spyre::kernels::v4 {

#include "table.inl"

constinit const Table kTable = make_table("v4");

}  // namespace spyre::kernels::v4
#endif
