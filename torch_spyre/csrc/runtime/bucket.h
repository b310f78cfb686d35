// Tensors of dynamic size in memory that has room for more.
//
// Compiled code works on tensors of a bucket's size. What leaves it has the size that was asked for
// but stays where it is: its layout has the device size of the bucket and, in its stride map, the
// strides of the smaller tensor. So a cache that comes back with the next call is in its bucket
// already, and nobody copies it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "runtime/storage.h"

namespace spyre {

// What a kernel was compiled for.
struct Bucket {
  c10::IntArrayRef size;
  c10::IntArrayRef stride;
  c10::IntArrayRef device_size;
  c10::IntArrayRef stride_map;
};

// A tensor's values at the start of every dimension of a bucket. The tensor's own memory, if it is
// laid out with this device size and stride map (`own_map`); else a copy, with zeros behind.
at::Tensor to_bucket(const at::Tensor& tensor, const Bucket& bucket,
                     std::optional<c10::IntArrayRef> own_map);

// The tensor of this size at the start of every dimension of a bucket: in the bucket's memory if
// its stride map is given, else a copy.
at::Tensor from_bucket(const at::Tensor& bucket, c10::IntArrayRef size, c10::IntArrayRef stride,
                       std::optional<c10::IntArrayRef> stride_map);

// Writes a tensor's values in a bucket back to it, unless they are in its own memory.
void write_back(const at::Tensor& bucket, const at::Tensor& tensor);

}  // namespace spyre
