#include "runtime/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/CPUFallback.h>

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "runtime/cards.h"
#include "runtime/copy.h"
#include "runtime/generator.h"
#include "runtime/operation.h"

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

void check_device(const std::string& name, const at::Tensor& tensor,
                  std::optional<c10::Device>& common) {
  if (!tensor.defined() || (tensor.device().is_cpu() && tensor.dim() == 0)) {
    return;
  }
  TORCH_CHECK(!common || *common == tensor.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              *common, " and ", tensor.device(), "! (in ", name, ")");
  common = tensor.device();
}

// Once they are copied to the host, tensors of different devices would mix unnoticed. Indices may
// be on the CPU, as elsewhere in PyTorch.
void check_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string& name = op.schema().name();
  if (name.starts_with("aten::index") || name.starts_with("aten::_index") ||
      name.starts_with("aten::_copy") || name.starts_with("aten::_to_copy")) {
    return;
  }
  std::optional<c10::Device> common;
  const size_t count = op.schema().arguments().size();
  for (size_t index = stack.size() - count; index < stack.size(); ++index) {
    const c10::IValue& value = stack[index];
    if (value.isTensor()) {
      check_device(name, value.toTensor(), common);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        check_device(name, tensor, common);
      }
    }
  }
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
    c10::DeviceIndex device = -1;
    for (size_t index = stack.size() - count; index < stack.size(); ++index) {
      c10::IValue& value = stack[index];
      if (value.isGenerator()) {
        given = &value;
        own = given->toGenerator();
      } else if (value.isDevice() && device < 0) {
        device = value.toDevice().index();
      } else if (value.isTensor() && value.toTensor().defined() && device < 0) {
        device = value.toTensor().device().index();
      }
    }
    const PhiloxState state = take_random(own, checked_index(device), 1);
    const uint64_t seed = state.seed * 0x9E3779B97F4A7C15u + state.offset;
    if (given != nullptr) {
      *given = at::detail::createCPUGenerator(seed);
      return;
    }
    turn_ = std::unique_lock(turns());
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
  // The default generator serves one such call at a time.
  static std::mutex& turns() {
    static auto* mutex = new std::mutex();
    return *mutex;
  }

  std::unique_lock<std::mutex> turn_;
  std::optional<at::Generator> default_;
  at::Tensor before_;
};

// Results that the caller provides: the fallback brings them to the host like arguments, but nobody
// looks at what they held.
std::vector<std::unique_ptr<UndefinedAllowed>> unread_results(const c10::OperatorHandle& op,
                                                              const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  std::vector<c10::Storage> results;
  std::set<const c10::StorageImpl*> read;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - arguments.size() + i];
    const auto tensors = value.isTensorList() ? value.toTensorVector()
                         : value.isTensor()   ? std::vector<at::Tensor>{value.toTensor()}
                                              : std::vector<at::Tensor>{};
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || !tensor.has_storage()) {
        continue;
      }
      if (arguments[i].is_out()) {
        results.push_back(tensor.storage());
      } else {
        read.insert(tensor.storage().unsafeGetStorageImpl());
      }
    }
  }
  std::vector<std::unique_ptr<UndefinedAllowed>> allowed;
  for (const c10::Storage& storage : results) {
    if (read.count(storage.unsafeGetStorageImpl()) == 0) {
      allowed.push_back(std::make_unique<UndefinedAllowed>(storage));
    }
  }
  return allowed;
}

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
  const c10::OperatorName& full = op.operator_name();
  const std::string name =
      full.overload_name.empty() ? full.name : full.name + "." + full.overload_name;
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
    C10_THROW_ERROR(NotImplementedError,
                    name + " has no kernel for spyre, and the CPU has none to fall back to");
  }
  check_devices(op, *stack);
  note_fallback(name);
  const CpuRandom random(op, *stack);
  const auto allowed = unread_results(op, *stack);
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

// Whatever has no kernel of its own: the planner may know how, else the CPU does it.
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&operation_kernel>());
}

}  // namespace spyre
