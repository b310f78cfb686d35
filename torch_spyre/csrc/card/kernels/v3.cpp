// The kernels for x86-64-v3 (AVX2).
#include "versions.h"

#if defined(__x86_64__)
#pragma GCC target("arch=x86-64-v3")

namespace spyre::kernels::v3 {

#include "table.inl"

constinit const Table kTable = make_table("v3");

}  // namespace spyre::kernels::v3
#endif
