// Operations that the card doesn't have run on the CPU: they warn once each and are counted.
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <map>
#include <string>

namespace c10 {
class OperatorHandle;
}

namespace spyre {

// Copies the arguments to the host, computes there, copies the results back. Results that the
// caller provides are written, and resized if need be. Raises RuntimeError for an operation that
// returns a view, because the CPU could only give a copy, and for any with
// TORCH_SPYRE_FALLBACK=error.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same for an operation that the CPU has under another name. The stack holds the arguments of
// `on_cpu`; `op` is the one that is counted and warned about.
void run_on_cpu_as(const c10::OperatorHandle& op, const c10::OperatorHandle& on_cpu,
                   torch::jit::Stack* stack);

// With TORCH_SPYRE_FALLBACK=error, raises: the error of the call on the CPU, if it has one, else
// that it must not run there. `arguments` are those of `on_cpu`.
void check_fallback_allowed(const c10::OperatorHandle& op, const c10::OperatorHandle& on_cpu,
                            const torch::jit::Stack& arguments);

// Counts a call that the CPU has taken over, and warns about the first of its kind.
void note_fallback(const c10::OperatorHandle& op);

// Called the first time that an operation falls back. Set by the module.
void set_fallback_warning(std::function<void(const std::string& name)> warn);

std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();  // and warns again

}  // namespace spyre
