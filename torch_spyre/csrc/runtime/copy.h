// Copies between host and card, on a card, and between cards.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/storage.h"

namespace spyre {

// Any devices, layouts, strides and dtypes; `from` broadcasts to `to`.
void copy_tensor(const at::Tensor& from, const at::Tensor& to, bool non_blocking);

// While it lives, this thread may bring the storage to the host before all of it was written, as
// whoever asks for a copy of the whole does. Checked mode reports it otherwise.
class UndefinedAllowed {
 public:
  explicit UndefinedAllowed(const c10::Storage& storage);
  ~UndefinedAllowed();
  UndefinedAllowed(const UndefinedAllowed&) = delete;
  UndefinedAllowed& operator=(const UndefinedAllowed&) = delete;
};

// The host image of a whole storage as a one-dimensional CPU tensor of the storage's dtype
// (bytes while that is not known), and the way back.
at::Tensor read_image(const c10::Storage& storage);
void write_image(const c10::Storage& storage, const at::Tensor& image);

// Gives the storage another layout, dtype or size, with a new block. With `keep`, the elements
// that fit are carried over.
void replace_storage(const c10::Storage& storage, LayoutPtr layout, c10::ScalarType dtype,
                     int64_t numel, bool keep);

// Gives the tensor's storage this layout, with its contents. Throws c10::ValueError if the layout
// doesn't fit, and for views: the layout is that of the whole storage.
void set_layout(const at::Tensor& tensor, const SpyreTensorLayout& layout);

// A storage of unknown dtype becomes one of `tensor`'s dtype, if its bytes can be held so. No-op
// when the dtype is known.
void adopt_dtype(const at::Tensor& tensor);

// For a tensor whose dtype is not its storage's: its elements as a tensor of their own.
at::Tensor materialize(const at::Tensor& tensor);

}  // namespace spyre
