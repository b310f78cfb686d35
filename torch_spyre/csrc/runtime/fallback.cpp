#include "runtime/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/CPUFallback.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <vector>

#include "runtime/cards.h"
#include "runtime/copy.h"
#include "runtime/dtypes.h"
#include "runtime/env.h"
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
// looks at what they held. The CPU sees copies, so it can't refuse those that hold an element
// twice.
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
        at::assert_no_internal_overlap(tensor);
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

std::string full_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

void describe(std::ostream& text, const at::Tensor& tensor) {
  if (tensor.defined()) {
    text << c10::getDtypeNames(tensor.scalar_type()).first << tensor.sizes() << " on "
         << tensor.device();
  } else {
    text << "None";
  }
}

void describe(std::ostream& text, const c10::IValue& value) {
  if (value.isTensor()) {
    describe(text, value.toTensor());
  } else if (value.isTensorList()) {
    const char* separator = "[";
    for (const at::Tensor& tensor : value.toTensorVector()) {
      text << separator;
      describe(text, tensor);
      separator = ", ";
    }
    text << "]";
  } else {
    text << value;
  }
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; }

// The arguments, with copies on the host for those on the card: what is written there is lost.
torch::jit::Stack arguments_on_host(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  torch::jit::Stack host;
  for (size_t index = stack.size() - count; index < stack.size(); ++index) {
    const c10::IValue& value = stack[index];
    if (value.isTensor()) {
      host.emplace_back(on_host(value.toTensor()));
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      std::transform(tensors.begin(), tensors.end(), tensors.begin(), on_host);
      host.emplace_back(std::move(tensors));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        tensors.push_back(tensor ? std::optional(on_host(*tensor)) : std::nullopt);
      }
      host.emplace_back(std::move(tensors));
    } else if (value.isDevice()) {
      host.emplace_back(c10::Device(c10::kCPU));
    } else {
      host.push_back(value);
    }
  }
  return host;
}

[[noreturn]] void refuse(const c10::OperatorHandle& op, const c10::OperatorHandle& described,
                         const torch::jit::Stack& stack) {
  std::ostringstream text;
  text << full_name(op)
       << " has no kernel on the card for these arguments, and TORCH_SPYRE_FALLBACK=error forbids "
          "to run it on the CPU\n  called with ";
  const auto& arguments = described.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    text << (i == 0 ? "" : ", ") << arguments[i].name() << ": ";
    describe(text, stack[stack.size() - arguments.size() + i]);
  }
  text << "\n  try         move the arguments to the CPU where that is what you want (x.cpu(), and "
          "the result .to(\"spyre\")), write it with operations that the card has, or unset "
          "TORCH_SPYRE_FALLBACK (\"warn\" is the default, \"quiet\" only counts)";
  C10_THROW_ERROR(Error, text.str());
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      return true;
    }
  }
  return false;
}

// A view of card memory can't be had from the CPU, and a copy in its place would swallow what is
// written to it. A view with a dtype that the card lacks is the dtype's error.
[[noreturn]] void refuse_view(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  torch::jit::Stack host = arguments_on_host(op, stack);
  op.callBoxed(&host);
  for (const c10::IValue& value : host) {
    if (value.isTensor()) {
      device_format(value.toTensor().scalar_type());
    }
  }
  C10_THROW_ERROR(Error, full_name(op) +
                             " returns a view of its argument and has no kernel for spyre: the CPU "
                             "fallback could only return a copy, and what is written to it would "
                             "be lost. Move the argument to the CPU first (x.cpu()), or use an "
                             "operation that copies");
}

}  // namespace

void check_fallback_allowed(const c10::OperatorHandle& op, const c10::OperatorHandle& on_cpu,
                            const torch::jit::Stack& arguments) {
  if (environment().fallback != FallbackMode::Error) {
    return;
  }
  // A call that is wrong anywhere has an error of its own, which says more.
  torch::jit::Stack tried = [&] {
    const auto allowed = unread_results(on_cpu, arguments);
    return arguments_on_host(on_cpu, arguments);
  }();
  on_cpu.callBoxed(&tried);
  refuse(op, on_cpu, arguments);
}

void note_fallback(const c10::OperatorHandle& op) {
  const FallbackMode mode = environment().fallback;
  const std::string name = full_name(op);
  std::function<void(const std::string&)> warn;
  {
    const std::lock_guard lock(state().mutex);
    if (state().counts[name]++ == 0 && mode == FallbackMode::Warn) {
      warn = state().warn;
    }
  }
  if (warn) {
    warn(name);  // off the lock: it may raise, and takes Python's lock
  }
}

void run_on_cpu_as(const c10::OperatorHandle& op, const c10::OperatorHandle& on_cpu,
                   torch::jit::Stack* stack) {
  if (!on_cpu.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
    C10_THROW_ERROR(
        NotImplementedError,
        full_name(op) + " has no kernel for spyre, and the CPU has none to fall back to");
  }
  check_devices(on_cpu, *stack);
  if (returns_view(on_cpu.schema())) {
    refuse_view(on_cpu, *stack);
  }
  check_fallback_allowed(op, on_cpu, *stack);
  {
    const CpuRandom random(on_cpu, *stack);
    const auto allowed = unread_results(on_cpu, *stack);
    at::native::cpu_fallback(on_cpu, stack);
  }
  note_fallback(op);  // not of a call that raised: the card did not lack anything
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_cpu_as(op, op, stack);
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

// PyTorch's kernel of this one serves every device, but asks for one that it knows.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mode.values", torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace spyre
