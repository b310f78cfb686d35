// The values behind a shadow: which of them are finite.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace spyre {

inline bool is_finite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7F800000) != 0x7F800000;
}

// Calls `visit(i, value)` for `n` elements of a float format that follow each other.
template <typename Visit>
void for_each_value(DataFormat format, const std::byte* values, int64_t n, Visit visit) {
  alignas(64) std::array<kernels::Word, kernels::kBlockElements> words;
  const kernels::Load load = kernels::table().load[static_cast<int>(format)];
  for (int64_t begin = 0; begin < n; begin += kernels::kBlockElements) {
    const int64_t count = std::min(kernels::kBlockElements, n - begin);
    load(values + begin * element_bytes(format), words.data(), count);
    for (int64_t i = 0; i < count; ++i) visit(begin + i, std::bit_cast<float>(words[i]));
  }
}

}  // namespace spyre
