#include "runtime/fallback.h"

#include <ATen/native/CPUFallback.h>

#include <mutex>

namespace spyre {
namespace {

struct State {
  std::mutex mutex;
  std::map<std::string, int64_t> counts;
  std::function<void(const std::string&)> warn;
};

State& state() {
  static State* instance = new State();
  return *instance;
}

void note(const std::string& name) {
  std::function<void(const std::string&)> warn;
  {
    const std::lock_guard lock(state().mutex);
    if (state().counts[name]++ == 0) {
      warn = state().warn;
    }
  }
  if (warn) {
    warn(name);  // off the lock: it may raise, and takes Python's lock
  }
}

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::OperatorName& name = op.operator_name();
  note(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
  at::native::cpu_fallback(op, stack);
}

void set_fallback_warning(std::function<void(const std::string&)> warn) {
  const std::lock_guard lock(state().mutex);
  state().warn = std::move(warn);
}

std::map<std::string, int64_t> fallback_counts() {
  const std::lock_guard lock(state().mutex);
  return state().counts;
}

void reset_fallback_counts() {
  const std::lock_guard lock(state().mutex);
  state().counts.clear();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace spyre
