#include "runtime/resize.h"

#include <ATen/native/Resize.h>
#include <c10/util/strides.h>

#include "runtime/copy.h"
#include "runtime/storage.h"
#include "runtime/strides.h"
#include "runtime/view.h"

namespace spyre {
namespace {

// A storage that held nothing becomes one for exactly this tensor.
void start_storage(const at::Tensor& tensor, c10::IntArrayRef size) {
  const auto stride = c10::contiguous_strides(size);
  replace_storage(tensor.storage(), default_layout(size, stride, tensor.scalar_type()),
                  tensor.scalar_type(), product(size), /*keep=*/false);
}

}  // namespace

void resize_storage(const c10::Storage& storage, int64_t bytes) {
  const CardStorage& record = card_storage(storage);
  if (record.is_untyped()) {
    replace_storage(storage, untyped_layout(bytes), record.dtype, bytes, /*keep=*/true);
    return;
  }
  const auto itemsize = static_cast<int64_t>(c10::elementSize(record.dtype));
  const int64_t numel = (bytes + itemsize - 1) / itemsize;
  replace_storage(storage, default_layout({numel}, {1}, record.dtype), record.dtype, numel,
                  /*keep=*/true);
}

void resize_tensor(const at::Tensor& tensor, c10::IntArrayRef size,
                   std::optional<c10::MemoryFormat> format) {
  check_size(size);
  if (tensor.sizes() == size && !format) {
    return;
  }
  const CardStorage& record = card_storage(tensor.storage());
  const int64_t needed = tensor.storage_offset() + product(size);
  TORCH_CHECK(needed <= kMostElements, "Storage size calculation overflowed with sizes=", size);
  const int64_t bytes = needed * static_cast<int64_t>(tensor.itemsize());
  if (record.numel == 0 && tensor.storage_offset() == 0) {
    start_storage(tensor, size);
  } else if (bytes > static_cast<int64_t>(tensor.storage().nbytes())) {
    resize_storage(tensor.storage(), bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
}

void resize_output(const at::Tensor& tensor, c10::IntArrayRef size) {
  at::native::resize_output_check(tensor, size);  // warns
  const bool is_alone = tensor.storage().use_count() == 1 && !is_reinterpreted(tensor);
  if (is_alone && covers_storage(tensor)) {
    start_storage(tensor, size);
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  } else {
    resize_tensor(tensor, size, std::nullopt);
  }
}

}  // namespace spyre
