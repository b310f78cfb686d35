#include "runtime/view.h"

#include <ATen/TensorUtils.h>
#include <c10/core/TensorImpl.h>

#include "runtime/cards.h"
#include "runtime/dtypes.h"
#include "runtime/strides.h"

namespace spyre {

void append_key(std::string& key, int64_t value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_key(std::string& key, c10::IntArrayRef values) {
  append_key(key, static_cast<int64_t>(values.size()));
  key.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
}

void append_key(std::string& key, const SpyreTensorLayout& layout) {
  append_key(key, c10::IntArrayRef(layout.device_size()));
  append_key(key, c10::IntArrayRef(layout.stride_map()));
  append_key(key, static_cast<int64_t>(layout.device_dtype()));
}

void CardView::append_key(std::string& key) const {
  spyre::append_key(key, size);
  spyre::append_key(key, stride);
  spyre::append_key(key, offset);
  spyre::append_key(key, static_cast<int64_t>(storage->dtype));
  spyre::append_key(key, storage->numel);
  spyre::append_key(key, *storage->layout);
}

bool is_reinterpreted(const at::Tensor& tensor) {
  return card_storage(tensor.storage()).dtype != tensor.scalar_type();
}

namespace {

// The first host offset of the stick that holds this one.
int64_t stick_start(const SpyreTensorLayout& layout, int64_t host_offset) {
  const int64_t lane = layout.device_offset(host_offset) % layout.elems_per_stick();
  return host_offset - lane * std::max<int64_t>(layout.stride_map().back(), 0);
}

}  // namespace

CardView view_of(const at::Tensor& tensor, Frame frame) {
  CardView view;
  view.storage = &card_storage(tensor.storage());
  view.size = tensor.sizes();
  view.stride = tensor.strides();
  const int64_t first = tensor.storage_offset();
  const int64_t last = first + strided_reach(view.size, view.stride) - 1;
  TORCH_CHECK(tensor.numel() == 0 || last < view.storage->numel, "the tensor reaches element ",
              last, " of a storage of ", view.storage->numel,
              " elements; the storage was resized behind it");
  const SpyreTensorLayout& layout = *view.storage->layout;
  int64_t start = tensor.numel() == 0 ? 0 : layout.block_start(first, last);
  if (frame == Frame::Stick) {
    start = stick_start(layout, start);
  }
  const int64_t skipped =
      start == 0 ? 0 : layout.device_offset(start) * element_bytes(layout.device_dtype());
  view.offset = tensor.numel() == 0 ? 0 : first - start;
  view.address = view.storage->address + skipped;
  view.bytes = view.storage->device_bytes - skipped;
  return view;
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.numel() == card_storage(tensor.storage()).numel;
}

at::Tensor make_tensor(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype,
                       c10::DeviceIndex device, LayoutPtr layout) {
  warn_about_downcast(dtype);
  if (!layout) {
    layout = default_layout(size, stride, dtype);
  }
  c10::Storage storage =
      make_storage(device, std::move(layout), dtype, strided_reach(size, stride));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return tensor;
}

}  // namespace spyre
