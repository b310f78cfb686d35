// Convolutions on the CPU. PyTorch routes them to operations that only backends implement, so the
// general fallback finds no CPU kernel for them.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "runtime/fallback.h"

namespace spyre {
namespace {

c10::OperatorHandle operation(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void convolution(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const c10::OperatorHandle on_cpu = operation("aten::convolution");
  run_on_cpu_as(op, on_cpu, stack);
}

// The CPU's has the shape of the bias as its fourth argument.
void convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const c10::OperatorHandle on_cpu = operation("aten::convolution_backward");
  const auto first = stack->end() - static_cast<int64_t>(op.schema().arguments().size());
  const int64_t channels = first->toTensor().size(1);
  stack->insert(first + 3, c10::IValue(std::vector<int64_t>{channels}));
  run_on_cpu_as(op, on_cpu, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace spyre
