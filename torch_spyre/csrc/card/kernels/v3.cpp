// The kernels for x86-64-v3 (AVX2).
#include "versions.h"

#if defined(__x86_64__)
#include <immintrin.h>

// GCC does not define __AVX512F__ and the like for a target that a pragma chooses by `arch`.
#define SPYRE_FMA_WIDTH 8  // floats of the widest fused multiply-add
#pragma GCC target("arch=x86-64-v3")

namespace spyre::kernels::v3 {

#include "table.inl"

constinit const Table kTable = make_table("v3");

}  // namespace spyre::kernels::v3
#endif
