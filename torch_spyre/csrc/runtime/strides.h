// Arithmetic on host sizes and strides.
#pragma once

#include <c10/util/ArrayRef.h>

namespace spyre {

inline int64_t product(c10::IntArrayRef size) {
  int64_t numel = 1;
  for (const int64_t extent : size) {
    numel *= extent;
  }
  return numel;
}

// Elements from the first to the last that a strided walk names, both included; 0 if it names none.
inline int64_t strided_reach(c10::IntArrayRef size, c10::IntArrayRef stride) {
  int64_t last = 0;
  for (size_t dim = 0; dim < size.size(); ++dim) {
    if (size[dim] == 0) {
      return 0;
    }
    last += (size[dim] - 1) * stride[dim];
  }
  return last + 1;
}

}  // namespace spyre
