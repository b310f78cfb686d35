// The aten kernels that make the device a device: creation, views, storage, copies.
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include "runtime/cards.h"
#include "runtime/copy.h"
#include "runtime/dtypes.h"
#include "runtime/resize.h"
#include "runtime/stream.h"
#include "runtime/strides.h"
#include "runtime/view.h"

namespace spyre {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

// ---- Creation ---------------------------------------------------------------------------------

c10::DeviceIndex index_of(const optional<c10::Device>& device) {
  TORCH_CHECK(!device || device->is_privateuseone(), "expected a spyre device, got ", *device);
  return checked_index(device ? device->index() : -1);
}

void check_options(const optional<at::Layout>& layout, const optional<bool>& pin_memory) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided,
              "spyre tensors are strided; the layout ", *layout, " is not supported");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

Tensor empty_memory_format(IntArrayRef size, optional<at::ScalarType> dtype,
                           optional<at::Layout> layout, optional<c10::Device> device,
                           optional<bool> pin_memory, optional<at::MemoryFormat> format) {
  check_options(layout, pin_memory);
  check_size(size);
  const auto type = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  auto stride = c10::contiguous_strides(size);
  if (format == at::MemoryFormat::ChannelsLast) {
    TORCH_CHECK(size.size() == 4, "required rank 4 tensor to use channels_last format");
    stride = c10::get_channels_last_strides_2d(size);
  } else if (format == at::MemoryFormat::ChannelsLast3d) {
    TORCH_CHECK(size.size() == 5, "required rank 5 tensor to use channels_last_3d format");
    stride = c10::get_channels_last_strides_3d(size);
  }
  return make_tensor(size, stride, type, index_of(device));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype,
                     optional<at::Layout> layout, optional<c10::Device> device,
                     optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  check_size(size);
  TORCH_CHECK(size.size() == stride.size(), "dimensionality of sizes (", size.size(),
              ") must match dimensionality of strides (", stride.size(), ")");
  for (const int64_t step : stride) {
    TORCH_CHECK(step >= 0, "Trying to create tensor with negative stride ", step, ": ", stride);
  }
  const auto type = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  return make_tensor(size, stride, type, index_of(device));
}

// ---- Storage ----------------------------------------------------------------------------------

const Tensor& resize_(const Tensor& self, IntArrayRef size, optional<at::MemoryFormat> format) {
  resize_tensor(self, size, format);
  return self;
}

void set_storage(Tensor& self, const at::Storage& source, int64_t offset, IntArrayRef size,
                 IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (stride.data() == nullptr || stride.size() != size.size()) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  } else {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  }
  const int64_t reach = strided_reach(self.sizes(), self.strides());
  TORCH_CHECK(offset <= kMostElements, "the storage offset ", offset, " is out of bounds");
  const int64_t needed = reach == 0 ? 0 : offset + reach;
  if (needed * static_cast<int64_t>(self.itemsize()) > static_cast<int64_t>(source.nbytes())) {
    resize_storage(source, needed * static_cast<int64_t>(self.itemsize()));
  }
}

Tensor& set_source_storage_offset(Tensor& self, at::Storage source, int64_t offset,
                                  IntArrayRef size, IntArrayRef stride) {
  set_storage(self, source, offset, size, stride);
  adopt_dtype(self);
  return self;
}

Tensor& set_source_storage(Tensor& self, at::Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / self.itemsize());
  set_storage(self, source, 0, {numel}, {1});
  if (self.scalar_type() != at::kByte) {  // bytes are how PyTorch looks at a storage of any type
    adopt_dtype(self);
  }
  return self;
}

Tensor& set_source_tensor(Tensor& self, const Tensor& source) {
  return set_source_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(),
                                   source.strides());
}

Tensor& set_(Tensor& self) {
  const auto dtype = self.scalar_type();
  return set_source_storage_offset(
      self, make_storage(self.device().index(), default_layout({0}, {1}, dtype), dtype, 0), 0, {0},
      {1});
}

void record_stream(Tensor& self, at::Stream stream) {
  record_use(self.storage().data_ptr(), stream);
}

// A module's parameters keep their identity when the module moves (`Module.to` sets `.data`):
// our storages carry all that makes them Spyre's, so any dense TensorImpl can hold one. Without
// this, tied parameters would come apart.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto is_plain = [](const Tensor& tensor) {
    return tensor.layout() == at::kStrided &&
           (tensor.device().is_cpu() || tensor.device().is_privateuseone());
  };
  return is_plain(self) && is_plain(from);
}

Tensor view_dtype(const Tensor& self, at::ScalarType dtype) {
  device_format(dtype);  // says which dtypes there are
  return at::native::view_dtype(self, dtype);
}

// ---- Copies -----------------------------------------------------------------------------------

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  copy_tensor(self, to, non_blocking);
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) {
    to.resize_(self.sizes());
  }
  copy_tensor(self, to, false);
  return to;
}

// A number has no dtype: 65536, which the card's 16 bits hold and float16 does not, stays itself.
at::Scalar local_scalar_dense(const Tensor& self) {
  const bool is_narrow = self.scalar_type() == at::kHalf || self.scalar_type() == at::kBFloat16;
  return (is_narrow ? self.to(at::kFloat) : self).cpu().item();
}

// The comparison runs on the card; whether all of its results are true is read on the host,
// until the card has reductions.
bool equal(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but "
              "found at least two devices, ",
              self.device(), " and ", other.device(), "!");
  if (!self.is_same_size(other)) {
    return false;
  }
  return self.numel() == 0 || self.eq(other).cpu().all().item<bool>();
}

// Copy-on-write is a matter of host pointers: card storages are copied at once.
Tensor lazy_clone(const Tensor& self) { return self.clone(); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_", TORCH_FN(set_));
  m.impl("set_.source_Tensor", TORCH_FN(set_source_tensor));
  m.impl("set_.source_Storage", TORCH_FN(set_source_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_source_storage_offset));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));

  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("view.dtype", TORCH_FN(view_dtype));
  m.impl("alias", TORCH_FN(at::native::alias));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));

  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("equal", TORCH_FN(equal));
  m.impl("_lazy_clone", TORCH_FN(lazy_clone));
}

// The copy kernels resolve negation and conjugation themselves; the general way would be to copy.
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace spyre
