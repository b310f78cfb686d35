#include "runtime/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/CPUFallback.h>

#include <mutex>

#include "runtime/cards.h"
#include "runtime/generator.h"

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

// Random operations follow the device's generator on the CPU too: its next numbers seed a CPU
// generator, which takes the place of the device's for one call.
class CpuRandom {
 public:
  CpuRandom(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    if (!op.hasTag(at::Tag::nondeterministic_seeded)) {
      return;
    }
    const size_t count = op.schema().arguments().size();
    c10::IValue* given = nullptr;
    std::optional<at::Generator> own;
    for (size_t index = stack.size() - count; index < stack.size(); ++index) {
      if (stack[index].isGenerator()) {
        given = &stack[index];
        own = given->toGenerator();
      }
    }
    const PhiloxState state = take_random(own, current_device(), 1);
    const uint64_t seed = state.seed * 0x9E3779B97F4A7C15u + state.offset;
    if (given != nullptr) {
      *given = at::detail::createCPUGenerator(seed);
      return;
    }
    default_ = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(default_->mutex());
    before_ = default_->get_state();
    default_->set_current_seed(seed);
  }
  ~CpuRandom() {
    if (default_) {
      const std::lock_guard lock(default_->mutex());
      default_->set_state(before_);
    }
  }
  CpuRandom(const CpuRandom&) = delete;
  CpuRandom& operator=(const CpuRandom&) = delete;

 private:
  std::optional<at::Generator> default_;
  at::Tensor before_;
};

}  // namespace

void note_fallback(const std::string& name) {
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

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::OperatorName& name = op.operator_name();
  note_fallback(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
  const CpuRandom random(op, *stack);
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
