#include "runtime/weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "runtime/copy.h"
#include "runtime/dtypes.h"
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

}  // namespace

void lay_out_weight(const std::string& operation, const std::vector<c10::IValue>& arguments) {
  const bool is_lookup = operation == "aten::embedding";
  const Product product = is_lookup ? Product{0} : product_of(operation);
  if (product.argument < 0 || !arguments[product.argument].isTensor()) {
    return;
  }
  const at::Tensor& tensor = arguments[product.argument].toTensor();
  if (!tensor.defined() || !tensor.device().is_privateuseone()) {
    return;
  }
  std::atomic<bool>& is_settled = card_storage(tensor.storage()).is_settled;
  if (is_settled) {
    return;
  }
  if (is_lookup) {
    is_settled = true;
    return;
  }
  if (!is_weight(product, tensor) || is_reinterpreted(tensor) || tensor.dim() != 2) {
    return;
  }
  const at::Tensor weight = product.is_turned ? tensor.t() : tensor;
  if (!is_whole_matrix(weight)) {
    return;
  }
  is_settled = true;
  if (*card_storage(tensor.storage()).layout !=
      *default_layout(weight.sizes(), weight.strides(), weight.scalar_type())) {
    return;  // somebody chose another
  }
  const auto layout = SpyreTensorLayout::from_host(weight.sizes().vec(), weight.strides().vec(),
                                                   device_format(weight.scalar_type()), {1, 0});
  while_only_thread([&] {
    try {
      set_layout(weight, layout);
    } catch (const c10::OutOfMemoryError&) {
      return;  // no room for it twice: it stays as it is
    }
    card_storage(weight.storage()).is_settled = true;  // of the new block
  });
}

}  // namespace spyre
