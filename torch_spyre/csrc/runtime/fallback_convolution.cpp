// Convolutions on the CPU. PyTorch routes them to operations that only backends implement, so the
// general fallback finds no CPU kernel for them.
#include <ATen/Functions.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "runtime/fallback.h"

namespace spyre {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

optional<Tensor> on_cpu(const optional<Tensor>& tensor) {
  return tensor && tensor->defined() ? optional<Tensor>(tensor->cpu()) : std::nullopt;
}

Tensor convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  note_fallback("aten::convolution_overrideable");
  return at::convolution(input.cpu(), weight.cpu(), on_cpu(bias), stride, padding, dilation,
                         transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad_output,
                                                        const Tensor& input, const Tensor& weight,
                                                        IntArrayRef stride, IntArrayRef padding,
                                                        IntArrayRef dilation, bool transposed,
                                                        IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> output_mask) {
  note_fallback("aten::convolution_backward_overrideable");
  const int64_t bias_size = grad_output.size(1);
  const auto grads = at::convolution_backward(grad_output.cpu(), input.cpu(), weight.cpu(),
                                              IntArrayRef(bias_size), stride, padding, dilation,
                                              transposed, output_padding, groups, output_mask);
  const auto back = [&](const Tensor& grad) {
    return grad.defined() ? grad.to(input.device()) : grad;
  };
  return {back(std::get<0>(grads)), back(std::get<1>(grads)), back(std::get<2>(grads))};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

}  // namespace spyre
