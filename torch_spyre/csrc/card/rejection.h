// How validation says no: the table, the entry and the reason.
#pragma once

#include <cstdint>
#include <string>

#include "program.h"
#include "walk.h"

namespace spyre {

inline constexpr int64_t kMaxExtent = int64_t{1} << 40;

[[noreturn]] inline void reject(const char* table, size_t entry, const std::string& reason) {
  throw ProgramError(std::string("card program rejected: ") + table + " " + std::to_string(entry) +
                     ": " + reason);
}

inline std::string text(Wide value) {
  constexpr Wide kLimit = int64_t{1} << 62;
  if (value > kLimit) return "more than 2^62";
  if (value < -kLimit) return "less than -2^62";
  return std::to_string(static_cast<int64_t>(value));
}

// Entries [first, first + count) of a table of `size`.
inline void check_range(const char* table, size_t entry, const char* what, uint64_t first,
                        uint64_t count, uint64_t size) {
  if (first > size || count > size - first) {
    reject(table, entry,
           std::string(what) + " " + std::to_string(first) + " to " +
               std::to_string(first + count) + " of a table of " + std::to_string(size));
  }
}

inline void check_base_count(const char* table, size_t entry, uint32_t count, uint32_t cores) {
  if (count != 1 && count != cores) {
    reject(table, entry,
           std::to_string(count) + " bases for " + std::to_string(cores) +
               " cores: must be 1 or one per core");
  }
}

}  // namespace spyre
