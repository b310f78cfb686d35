// Composites that have real arguments and real results, but complex or float64 tensors in between:
// taken apart on the device, they would end in a TypeError. They run on the CPU as a whole.
//
// PyTorch derives the gradient of a composite from its parts. So where gradients are recorded, the
// whole is made of operations that have one: a copy to the CPU, the composite there, a copy back.
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_batch_norm_impl_index_native.h>
#include <torch/library.h>

#include <optional>

#include "runtime/fallback.h"

namespace spyre {
namespace {

// The tensors of a stack's last values, those in lists too.
std::vector<at::Tensor> tensors_of(const torch::jit::Stack& stack, size_t count) {
  std::vector<at::Tensor> tensors;
  for (size_t index = stack.size() - count; index < stack.size(); ++index) {
    if (stack[index].isTensor() && stack[index].toTensor().defined()) {
      tensors.push_back(stack[index].toTensor());
    } else if (stack[index].isTensorList()) {
      const auto listed = stack[index].toTensorVector();
      tensors.insert(tensors.end(), listed.begin(), listed.end());
    }
  }
  return tensors;
}

void move(torch::jit::Stack* stack, size_t count, c10::Device device) {
  for (size_t index = stack->size() - count; index < stack->size(); ++index) {
    c10::IValue& value = (*stack)[index];
    if (value.isTensor() && value.toTensor().defined()) {
      value = value.toTensor().to(device);
    }
  }
}

bool writes(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      return true;
    }
  }
  return false;
}

void run_with_gradient(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  std::optional<c10::Device> device;
  bool records = false;
  for (const at::Tensor& tensor : tensors_of(*stack, count)) {
    records |= tensor.requires_grad() && c10::GradMode::is_enabled();
    if (tensor.device().is_privateuseone()) {
      device = tensor.device();
    }
  }
  if (!records || !device || writes(op.schema())) {
    const at::AutoDispatchBelowADInplaceOrView below;  // fake tensors go their own way there
    op.callBoxed(stack);
    return;
  }
  check_fallback_allowed(op, op, *stack);
  move(stack, count, c10::kCPU);
  op.callBoxed(stack);
  move(stack, op.schema().returns().size(), *device);
  note_fallback(op);
}

// PyTorch makes float64 statistics for an empty batch, which nobody reads; here they are float32.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t> batch_norm_impl_index(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps,
    bool cudnn_enabled) {
  if (input.sym_numel() != 0) {
    return at::native::_batch_norm_impl_index(input, weight, bias, running_mean, running_var,
                                              training, momentum, eps, cudnn_enabled);
  }
  at::Tensor result = input.clone();
  if (weight && weight->defined()) {
    result = result.mul(weight->select(0, 0));
  }
  if (bias && bias->defined()) {
    result = result.add(bias->select(0, 0));
  }
  const c10::SymInt features = input.dim() > 1 ? input.sym_size(1) : c10::SymInt(0);
  const at::Tensor statistics = at::empty_symint({features}, input.options().dtype(at::kFloat));
  const at::Tensor reserve = at::empty({0}, input.options().dtype(at::kByte));
  return {result, statistics, statistics.clone(), reserve, 0};
}

constexpr const char* kComposites[] = {
    "fft_hfft",
    "fft_hfft.out",
    "fft_hfft2",
    "fft_hfft2.out",
    "fft_hfftn",
    "fft_hfftn.out",
    "fft_irfft",
    "fft_irfft.out",
    "fft_irfft2",
    "fft_irfft2.out",
    "fft_irfftn",
    "fft_irfftn.out",
    "stft",
    "stft.center",
    "linalg_matrix_rank",
    "linalg_matrix_rank.out",
    "linalg_matrix_rank.atol_rtol_float",
    "linalg_matrix_rank.atol_rtol_float_out",
    "linalg_matrix_rank.atol_rtol_tensor",
    "linalg_matrix_rank.atol_rtol_tensor_out",
    "linalg_matrix_rank.tol_tensor",
    "linalg_matrix_rank.out_tol_tensor",
    "linalg_pinv",
    "linalg_pinv.out",
    "linalg_pinv.atol_rtol_float",
    "linalg_pinv.atol_rtol_float_out",
    "linalg_pinv.rcond_tensor",
    "linalg_pinv.out_rcond_tensor",
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : kComposites) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
  m.impl("_batch_norm_impl_index", TORCH_FN(batch_norm_impl_index));
  // This one has a derivative of its own.
  for (const char* name : {"linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_tensor_out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  for (const char* name : kComposites) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_with_gradient>());
  }
  m.impl("_batch_norm_impl_index", TORCH_FN(batch_norm_impl_index));
  // No composite, but its derivative is one of float64 parts.
  m.impl("renorm", torch::CppFunction::makeFromBoxedFunction<&run_with_gradient>());
}

}  // namespace spyre
