#include "runtime/weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "runtime/cards.h"
#include "runtime/copy.h"
#include "runtime/dtypes.h"
#include "runtime/storage.h"
#include "runtime/stream.h"
#include "runtime/view.h"

namespace spyre {
namespace {

// Which argument of a product may be a weight; -1: it is none.
int weight_argument(const std::string& operation) {
  if (operation == "aten::mm") return 1;
  if (operation == "aten::addmm") return 2;
  return -1;
}

// Is it a parameter, or a view of one, of which no gradient is asked now? (C++ knows parameters
// only as leaves that can have one.)
bool is_parameter_at_rest(const at::Tensor& tensor) {
  if (at::GradMode::is_enabled()) return false;
  const at::TensorBase& base = tensor.is_view() ? tensor._base() : tensor;
  return base.requires_grad() && base.is_leaf();
}

bool is_transposed_whole(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.stride(0) == 1 && tensor.stride(1) == tensor.size(0) &&
         tensor.size(0) > 1 && tensor.size(1) > 1 && covers_storage(tensor);
}

SpyreTensorLayout layout_for_products(const at::Tensor& matrix) {
  return SpyreTensorLayout::from_host(matrix.sizes().vec(), matrix.strides().vec(),
                                      device_format(matrix.scalar_type()), {1, 0});
}

std::shared_ptr<const ProductCopy> make_copy(const at::Tensor& matrix) {
  const CardStorage& storage = card_storage(matrix.storage());
  ProductCopy copy;
  copy.writes = storage.writes;  // before it is read: a write meanwhile makes it stale
  copy.weight = make_tensor(matrix.sizes(), matrix.strides(), matrix.scalar_type(), storage.device,
                            std::make_shared<SpyreTensorLayout>(layout_for_products(matrix)));
  copy_tensor(matrix, copy.weight, false);
  copy.queue = current_queue(storage.device);
  copy.made = driver(storage.device).record(copy.queue);
  return std::make_shared<const ProductCopy>(std::move(copy));
}

// Nobody who uses the matrix on another stream knows of the copy, so nobody waits for it.
void use_here(const ProductCopy& copy) {
  const CardStorage& storage = card_storage(copy.weight.storage());
  const QueueId queue = current_queue(storage.device);
  if (queue == copy.queue) return;
  Driver& card = driver(storage.device);
  if (!card.is_done(copy.made)) card.block(queue, copy.made);
  card.record_use(storage.address, queue);
}

// In place, for all who use the parameter.
void settle(const at::Tensor& weight) {
  const c10::Storage& storage = weight.storage();
  card_storage(storage).use = Use::Settled;
  if (*card_storage(storage).layout !=
      *default_layout(weight.sizes(), weight.strides(), weight.scalar_type())) {
    return;  // somebody chose another
  }
  try {
    set_layout(weight, layout_for_products(weight));
  } catch (const c10::OutOfMemoryError&) {
    return;  // no room for it twice: it stays as it is
  }
  card_storage(storage).use = Use::Settled;  // of the new block
}

}  // namespace

at::Tensor copy_for_products(const at::Tensor& matrix) {
  if (!covers_storage(matrix)) {
    return make_copy(matrix)->weight;
  }
  const CardStorage& storage = card_storage(matrix.storage());
  if (storage.use == Use::Unknown) storage.use = Use::Table;
  auto copy = storage.product_copy.load();
  if (copy == nullptr || copy->writes != storage.writes) {
    storage.product_copy.store(nullptr);  // its memory may be what the new one needs
    copy.reset();
    copy = make_copy(matrix);
    storage.product_copy.store(copy);
  }
  use_here(*copy);
  return copy->weight;
}

void lay_out_weight(const std::string& operation, std::vector<c10::IValue>& arguments) {
  const bool is_lookup = operation == "aten::embedding";
  const int position = is_lookup ? 0 : weight_argument(operation);
  if (position < 0 || !arguments[position].isTensor()) {
    return;
  }
  const at::Tensor tensor = arguments[position].toTensor();
  if (!tensor.defined() || !tensor.device().is_privateuseone()) {
    return;
  }
  const CardStorage& storage = card_storage(tensor.storage());
  const Use use = storage.use;
  if (is_lookup) {
    if (use == Use::Unknown) storage.use = Use::Table;
    return;
  }
  if (use == Use::Settled || !is_parameter_at_rest(tensor) || is_reinterpreted(tensor) ||
      !is_transposed_whole(tensor)) {
    return;
  }
  const at::Tensor weight = tensor.t();
  if (use == Use::Unknown) {
    while_only_thread([&] { settle(weight); });
    return;
  }
  try {
    arguments[position] = copy_for_products(weight).t();
  } catch (const c10::OutOfMemoryError&) {
    storage.use = Use::Settled;  // no room for it twice: it is laid out at every call
  }
}

}  // namespace spyre
