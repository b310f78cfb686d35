// The index of a Gather or Scatter: read, and checked before an address is made of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "driver.h"
#include "step.h"

namespace spyre {

// Rows of the table, 0 at least.
inline int64_t table_rows(const CoreStep& step) { return std::max<int64_t>(0, step.mask[0].count); }

inline int32_t index_at(const std::byte* place) {
  int32_t index = 0;
  std::memcpy(&index, place, sizeof(index));
  return index;
}

// `point` is the iteration, counted from the first one of the bound step.
[[noreturn]] inline void fail_index(const CoreStep& step, int32_t index,
                                    const std::array<int64_t, kStepRank>& point) {
  std::string place;
  for (int dim = 0; dim < step.record->rank; ++dim) {
    place += (dim == 0 ? "" : ", ") + std::to_string(step.start[dim] + point[dim]);
  }
  // A program counts negative indices from the end, or has -1 for one of several that is outside:
  // such a number is not the one that was given.
  const std::string what = index < 0 ? "an index" : "index " + std::to_string(index);
  throw CardFault(CardFault::Kind::IndexError,
                  what + " is out of range for a table of " + std::to_string(table_rows(step)) +
                      " rows (core " + std::to_string(step.core) + ", iteration " + place + ")");
}

}  // namespace spyre
