// The kernels for any host.
#include "versions.h"

#define SPYRE_FMA_WIDTH 0  // no fused multiply-add, no vectors but the compiler's

namespace spyre::kernels::baseline {

#include "table.inl"

constinit const Table kTable = make_table("baseline");

}  // namespace spyre::kernels::baseline
