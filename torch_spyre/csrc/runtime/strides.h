// Arithmetic on host sizes and strides.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

namespace spyre {

// More than any card holds, and small enough that byte counts can't overflow.
inline constexpr int64_t kMostElements = int64_t{1} << 48;

inline void check_size(c10::IntArrayRef size) {
  for (const int64_t extent : size) {
    TORCH_CHECK(extent >= 0, "Trying to create tensor with negative dimension ", extent, ": ",
                size);
  }
}

inline int64_t product(c10::IntArrayRef size) {
  int64_t numel = 1;
  bool is_too_large = false;
  for (const int64_t extent : size) {
    if (extent == 0) {
      return 0;
    }
    is_too_large |= __builtin_mul_overflow(numel, extent, &numel);
  }
  TORCH_CHECK(!is_too_large, "numel: integer multiplication overflow for sizes ", size);
  return numel;
}

// Elements from the first to the last that a strided walk names, both included; 0 if it names none.
inline int64_t strided_reach(c10::IntArrayRef size, c10::IntArrayRef stride) {
  int64_t reach = 1;
  bool is_too_large = false;
  for (size_t dim = 0; dim < size.size(); ++dim) {
    if (size[dim] == 0) {
      return 0;
    }
    int64_t step = 0;
    is_too_large |= __builtin_mul_overflow(size[dim] - 1, stride[dim], &step);
    is_too_large |= __builtin_add_overflow(reach, step, &reach);
  }
  TORCH_CHECK(!is_too_large && reach <= kMostElements,
              "Storage size calculation overflowed with sizes=", size, " and strides=", stride);
  return reach;
}

}  // namespace spyre
