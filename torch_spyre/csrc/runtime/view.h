// A tensor as the card sees it: a view of a stored layout.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/storage.h"

namespace spyre {

// What an address may be a multiple of: kernels read whole sticks, transfers any element.
enum class Frame { Stick, Element };

// Views that differ only in which block of the storage they start in (rows of a matrix, elements
// of a vector) are the same view at different addresses: `offset` counts from the start of the
// block that holds the view, `address` is where that block begins.
struct CardView {
  const CardStorage* storage = nullptr;
  c10::IntArrayRef size;
  c10::IntArrayRef stride;
  int64_t offset = 0;
  Address address = 0;
  int64_t bytes = 0;  // of the storage from `address` on

  // Appends all that a plan for this view depends on: everything but the address.
  void append_key(std::string& key) const;
};

// The tensor must be on a Spyre device, with the dtype of its storage.
CardView view_of(const at::Tensor& tensor, Frame frame);

// A storage seen under another dtype (`x.view(torch.int16)`, untyped bytes) has no elements of
// that dtype on the card: its meaning is that of the host image.
bool is_reinterpreted(const at::Tensor& tensor);

// Does the view name every element of its storage exactly once?
bool covers_storage(const at::Tensor& tensor);

// A new tensor with its own storage. Strides must be given in full.
at::Tensor make_tensor(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype,
                       c10::DeviceIndex device, LayoutPtr layout = nullptr);

void append_key(std::string& key, int64_t value);
void append_key(std::string& key, c10::IntArrayRef values);
void append_key(std::string& key, const SpyreTensorLayout& layout);

}  // namespace spyre
