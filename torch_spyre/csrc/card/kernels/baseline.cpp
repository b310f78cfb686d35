// The kernels for any host.
#include "versions.h"

namespace spyre::kernels::baseline {

#include "table.inl"

constinit const Table kTable = make_table("baseline");

}  // namespace spyre::kernels::baseline
