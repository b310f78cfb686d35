#include "runtime/weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "runtime/copy.h"
#include "runtime/dtypes.h"
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

}  // namespace

void lay_out_weight(const std::string& operation, const std::vector<c10::IValue>& arguments) {
  const bool is_lookup = operation == "aten::embedding";
  const int position = is_lookup ? 0 : weight_argument(operation);
  if (position < 0 || !arguments[position].isTensor()) {
    return;
  }
  const at::Tensor& tensor = arguments[position].toTensor();
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
  if (!is_parameter_at_rest(tensor) || is_reinterpreted(tensor) || !is_transposed_whole(tensor)) {
    return;
  }
  while_only_thread([&] {
    is_settled = true;
    const at::Tensor weight = tensor.t();
    if (*card_storage(tensor.storage()).layout !=
        *default_layout(weight.sizes(), weight.strides(), weight.scalar_type())) {
      return;  // somebody chose another
    }
    const auto layout = SpyreTensorLayout::from_host(weight.sizes().vec(), weight.strides().vec(),
                                                     device_format(weight.scalar_type()), {1, 0});
    try {
      set_layout(weight, layout);
    } catch (const c10::OutOfMemoryError&) {
      return;  // no room for it twice: it stays as it is
    }
    card_storage(weight.storage()).is_settled = true;  // of the new block
  });
}

}  // namespace spyre
