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

// How a product takes its weight.
struct Product {
  int argument = -1;          // which one it is; -1: none
  bool is_turned = true;      // (in, out), as the view of an (out, in) tensor
  bool is_quantised = false;  // in 8 bits
};

Product product_of(const std::string& operation) {
  if (operation == "aten::mm") return {1};
  if (operation == "aten::addmm") return {2};
  if (operation == "aten::_scaled_mm" || operation == "aten::_scaled_mm_v2") return {1, true, true};
  if (operation == "aten::_weight_int8pack_mm") return {1, false, true};
  return {};
}

// Is it a parameter, or a view of one, of which no gradient is asked now? (C++ knows parameters
// only as leaves that can have one.)
bool is_parameter_at_rest(const at::Tensor& tensor) {
  if (at::GradMode::is_enabled()) return false;
  const at::TensorBase& base = tensor.is_view() ? tensor._base() : tensor;
  return base.requires_grad() && base.is_leaf();
}

// Nobody trains in 8 bits: what a product takes in them was quantised for it.
bool is_weight(const Product& product, const at::Tensor& tensor) {
  return product.is_quantised ? tensor.element_size() == 1 : is_parameter_at_rest(tensor);
}

bool is_whole_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.stride(1) == 1 && tensor.stride(0) == tensor.size(1) &&
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
  const Product product = is_lookup ? Product{0} : product_of(operation);
  if (product.argument < 0 || !arguments[product.argument].isTensor()) {
    return;
  }
  const at::Tensor tensor = arguments[product.argument].toTensor();
  if (!tensor.defined() || !tensor.device().is_privateuseone()) {
    return;
  }
  const CardStorage& storage = card_storage(tensor.storage());
  const Use use = storage.use;
  if (is_lookup) {
    if (use == Use::Unknown) storage.use = Use::Table;
    return;
  }
  if (use == Use::Settled || !is_weight(product, tensor) || is_reinterpreted(tensor) ||
      tensor.dim() != 2) {
    return;
  }
  const at::Tensor weight = product.is_turned ? tensor.t() : tensor;
  if (!is_whole_matrix(weight)) {
    return;
  }
  if (use == Use::Unknown && storage.exchanges != 0) {
    return;  // the next product may
  }
  if (use == Use::Unknown) {
    while_only_thread([&] { settle(weight); });
    return;
  }
  try {
    const at::Tensor copy = copy_for_products(weight);
    arguments[product.argument] = product.is_turned ? copy.t() : copy;
  } catch (const c10::OutOfMemoryError&) {
    storage.use = Use::Settled;  // no room for it twice: it is laid out at every call
  }
}

}  // namespace spyre
