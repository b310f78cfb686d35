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

bool is_recorded(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
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
  std::atomic<WeightUse>& use = card_storage(tensor.storage()).use;
  if (use == WeightUse::Settled) {
    return;
  }
  if (is_lookup) {
    use = WeightUse::Settled;
  } else if (is_recorded(tensor) || is_reinterpreted(tensor) || !is_transposed_whole(tensor)) {
    return;
  } else if (use == WeightUse::None) {
    use = WeightUse::Once;
  } else {
    use = WeightUse::Settled;
    const at::Tensor weight = tensor.t();
    if (*card_storage(tensor.storage()).layout !=
        *default_layout(weight.sizes(), weight.strides(), weight.scalar_type())) {
      return;  // somebody chose another
    }
    while_only_thread([&] {
      set_layout(weight, SpyreTensorLayout::from_host(weight.sizes().vec(), weight.strides().vec(),
                                                      device_format(weight.scalar_type()), {1, 0}));
      card_storage(weight.storage()).use = WeightUse::Settled;  // of the new block
    });
  }
}

}  // namespace spyre
