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

// Copies the arguments to the host, computes there, copies the results back.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Counts a call that the CPU takes over, and warns about the first of its kind.
void note_fallback(const std::string& name);

// Called the first time that an operation falls back. Set by the module.
void set_fallback_warning(std::function<void(const std::string& name)> warn);

std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();  // and warns again

}  // namespace spyre
