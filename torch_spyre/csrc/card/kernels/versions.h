// The versions of the kernels. Each is one .cpp file that compiles `table.inl` for its target.
//
// Those files include what they need of the standard library before they choose the target, and
// instantiate none of it after: such a function would be emitted for that target under a name
// that the linker shares with the rest of the program.
#pragma once

#include "../kernels.h"

namespace spyre::kernels {

namespace baseline {
extern const Table kTable;
}
#if defined(__x86_64__)
namespace v3 {
extern const Table kTable;
}
namespace v4 {
extern const Table kTable;
}
#endif

}  // namespace spyre::kernels
