#include "runtime/bucket.h"

#include "runtime/copy.h"
#include "runtime/kernel.h"
#include "runtime/strides.h"
#include "runtime/view.h"

namespace spyre {
namespace {

at::Tensor valid_part(const at::Tensor& bucket, c10::IntArrayRef size) {
  return bucket.as_strided(size, bucket.strides());
}

at::Tensor in_memory_of(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride,
                        c10::IntArrayRef device_size, c10::IntArrayRef stride_map) {
  const DataFormat format = card_storage(tensor.storage()).layout->device_dtype();
  auto layout = std::make_shared<SpyreTensorLayout>(device_size.vec(), stride_map.vec(), format);
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      borrow_storage(tensor.storage(), std::move(layout), strided_reach(size, stride)),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return result;
}

// Behind the values of such a tensor may be anything. Numbers there do no harm; places would.
bool is_in_bucket(const at::Tensor& tensor, const Bucket& bucket, c10::IntArrayRef own_map) {
  if (!at::isFloatingType(tensor.scalar_type()) || is_reinterpreted(tensor)) return false;
  const SpyreTensorLayout& layout = *card_storage(tensor.storage()).layout;
  return bucket.device_size.equals(layout.device_size()) && own_map.equals(layout.stride_map()) &&
         covers_storage(tensor);
}

}  // namespace

at::Tensor to_bucket(const at::Tensor& tensor, const Bucket& bucket,
                     std::optional<c10::IntArrayRef> own_map) {
  if (own_map && is_in_bucket(tensor, bucket, *own_map)) {
    return in_memory_of(tensor, bucket.size, bucket.stride, bucket.device_size, bucket.stride_map);
  }
  const at::Tensor filled =
      empty_strided_with_layout(bucket.size, bucket.stride, tensor.scalar_type(),
                                tensor.device().index(), bucket.device_size, bucket.stride_map);
  filled.zero_();  // as places they do no harm, and no step reads what nobody wrote
  copy_tensor(tensor, valid_part(filled, tensor.sizes()), false);
  return filled;
}

at::Tensor from_bucket(const at::Tensor& bucket, c10::IntArrayRef size, c10::IntArrayRef stride,
                       std::optional<c10::IntArrayRef> stride_map) {
  if (stride_map) {
    const SpyreTensorLayout& layout = *card_storage(bucket.storage()).layout;
    return in_memory_of(bucket, size, stride, layout.device_size(), *stride_map);
  }
  const at::Tensor result =
      make_tensor(size, stride, bucket.scalar_type(), bucket.device().index());
  copy_tensor(valid_part(bucket, size), result, false);
  return result;
}

void write_back(const at::Tensor& bucket, const at::Tensor& tensor) {
  if (card_storage(bucket.storage()).address != card_storage(tensor.storage()).address) {
    copy_tensor(valid_part(bucket, tensor.sizes()), tensor, false);
  }
}

}  // namespace spyre
