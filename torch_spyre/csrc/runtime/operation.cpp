#include "runtime/operation.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_map>

#include "runtime/cards.h"
#include "runtime/copy.h"
#include "runtime/dtypes.h"
#include "runtime/errors.h"
#include "runtime/fallback.h"
#include "runtime/generator.h"
#include "runtime/planner.h"
#include "runtime/resize.h"
#include "runtime/view.h"

namespace spyre {
namespace {

// ---- Arguments --------------------------------------------------------------------------------

bool is_number(const c10::IValue& value, const c10::Type& type) {
  if (!(value.isInt() || value.isDouble() || value.isBool())) {
    return false;
  }
  const c10::Type* inner = &type;
  if (const auto optional = type.cast<c10::OptionalType>()) {
    inner = optional->getElementType().get();
  }
  return inner->kind() == c10::TypeKind::NumberType || inner->kind() == c10::TypeKind::FloatType;
}

c10::ScalarType number_dtype(const c10::Scalar& number) {
  return number.isBoolean()         ? c10::ScalarType::Bool
         : number.isIntegral(false) ? c10::ScalarType::Long
                                    : c10::ScalarType::Double;
}

[[noreturn]] void throw_device_mix(const std::string& name, c10::Device a, c10::Device b) {
  C10_THROW_ERROR(Error,
                  "Expected all tensors to be on the same device, but found at least two "
                  "devices, " +
                      a.str() + " and " + b.str() + "! (in " + name + ")");
}

// Per operation, the arguments whose values belong into the key.
std::unordered_map<std::string, std::vector<int64_t>>& value_arguments() {
  static auto* instance = new std::unordered_map<std::string, std::vector<int64_t>>();
  return *instance;
}

struct Call {
  std::string name;
  std::vector<c10::IValue> values;      // in schema order
  std::vector<const c10::Type*> types;  // null: a tensor
  std::vector<bool> is_written;
  c10::DeviceIndex device = -1;
  std::optional<at::Generator> generator;
  std::vector<ArgumentSpec> specs;
  std::string key;
};

c10::DeviceIndex device_of(const Call& call) {
  for (const c10::IValue& value : call.values) {
    if (value.isTensor() && value.toTensor().defined() &&
        value.toTensor().device().is_privateuseone()) {
      return value.toTensor().device().index();
    }
  }
  return current_device();
}

int first_alias(const Call& call, const at::Tensor& tensor) {
  int index = 0;
  while (!(call.values[index].isTensor() && call.values[index].toTensor().defined() &&
           call.values[index].toTensor().is_alias_of(tensor))) {
    ++index;
  }
  return index;
}

void append_tensor(Call& call, const at::Tensor& tensor, size_t index) {
  if (tensor.device().is_privateuseone()) {
    if (tensor.device().index() != call.device) {
      throw_device_mix(call.name, c10::Device(c10::kPrivateUse1, call.device), tensor.device());
    }
    ViewSpec spec;
    spec.view = view_of(tensor, Frame::Stick);
    spec.alias = first_alias(call, tensor);
    spec.distance = tensor.storage_offset() - call.values[spec.alias].toTensor().storage_offset();
    call.key.push_back('T');
    append_key(call.key, spec.alias);
    append_key(call.key, spec.distance);
    spec.view.append_key(call.key);
    call.specs.emplace_back(spec);
    return;
  }
  if (tensor.dim() != 0 || !tensor.device().is_cpu() || call.is_written[index]) {
    throw_device_mix(call.name, c10::Device(c10::kPrivateUse1, call.device), tensor.device());
  }
  if (tensor.is_complex()) {
    device_format(tensor.scalar_type());  // says which dtypes there are
  }
  const bool is_wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  call.key.push_back('S');
  append_key(call.key, static_cast<int64_t>(tensor.scalar_type()) * 2 + (is_wrapped ? 1 : 0));
  call.specs.emplace_back(ScalarSpec{tensor.scalar_type(), is_wrapped, tensor.item()});
}

void append_constant(Call& call, const c10::IValue& value) {
  call.key.push_back('C');
  if (value.isNone() || value.isGenerator()) {
    if (value.isGenerator()) {
      call.generator = value.toGenerator();
    }
    call.key.push_back('0');
    call.specs.emplace_back(c10::IValue());
    return;
  }
  std::ostringstream text;
  text << value;
  call.key += text.str();
  call.key.push_back('\0');
  call.specs.emplace_back(value);
}

void describe_arguments(Call& call) {
  call.device = device_of(call);
  call.specs.clear();
  call.key.clear();
  call.key.reserve(512);
  call.key += call.name;
  call.key.push_back('\0');
  // Integers promote to it.
  append_key(call.key, static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  for (size_t index = 0; index < call.values.size(); ++index) {
    const c10::IValue& value = call.values[index];
    if (value.isTensor() && value.toTensor().defined()) {
      append_tensor(call, value.toTensor(), index);
    } else if (call.types[index] != nullptr && is_number(value, *call.types[index])) {
      const c10::Scalar number = value.toScalar();
      const c10::ScalarType dtype = number_dtype(number);
      call.key.push_back('S');
      append_key(call.key, static_cast<int64_t>(dtype) * 2 + 1);
      call.specs.emplace_back(ScalarSpec{dtype, true, number});
    } else {
      if (value.isComplexDouble()) {
        device_format(c10::ScalarType::ComplexDouble);  // says which dtypes there are
      }
      append_constant(call, value.isTensor() ? c10::IValue() : value);
    }
  }
  if (const auto found = value_arguments().find(call.name); found != value_arguments().end()) {
    for (const int64_t index : found->second) {
      if (const auto* number = std::get_if<ScalarSpec>(&call.specs.at(index))) {
        append_key(call.key, std::bit_cast<int64_t>(number->value.toDouble()));
      }
    }
  }
}

// Tensors whose dtype is not their storage's are replaced by copies of their values. Returns what
// has to be written back afterwards.
std::vector<std::pair<at::Tensor, at::Tensor>> materialize_arguments(Call& call) {
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  for (size_t index = 0; index < call.values.size(); ++index) {
    c10::IValue& value = call.values[index];
    if (!value.isTensor() || !value.toTensor().defined() ||
        !value.toTensor().device().is_privateuseone()) {
      continue;
    }
    const at::Tensor original = value.toTensor();
    adopt_dtype(original);
    if (!is_reinterpreted(original)) {
      continue;
    }
    const at::Tensor values = materialize(original);
    value = values;
    if (call.is_written[index]) {
      written.emplace_back(values, original);
    }
  }
  return written;
}

// ---- Launch -----------------------------------------------------------------------------------

uint64_t float_word(const c10::Scalar& number, double limit) {
  const double given = number.toDouble();
  const auto value =
      static_cast<float>(std::isinf(given) ? given : std::clamp(given, -limit, limit));
  uint32_t word = 0;
  std::memcpy(&word, &value, sizeof(word));
  return word;
}

// Raises PyTorch's own error if a narrow dtype can't hold a number.
void check_fits(const c10::Scalar& number, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Char) {
    (void)number.toChar();
  } else if (dtype == c10::ScalarType::Byte) {
    (void)number.toByte();
  } else if (dtype == c10::ScalarType::Short) {
    (void)number.toShort();
  }
}

uint64_t int_word(const c10::Scalar& number, c10::ScalarType fits, const std::string& name) {
  check_fits(number, fits);
  int64_t value = 0;
  if (number.isFloatingPoint()) {
    const double real = number.toDouble();
    if (!(std::abs(real) < 9.2e18)) {
      raise_overflow("the scalar " + std::to_string(real) + " given to " + name +
                     " does not fit the 32-bit integers of the card");
    }
    value = static_cast<int64_t>(real);
  } else {
    value = number.toLong();
  }
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    raise_overflow("the scalar " + std::to_string(value) + " given to " + name +
                   " does not fit the 32-bit integers in which the card holds integer tensors");
  }
  return static_cast<uint32_t>(static_cast<int32_t>(value));
}

at::Tensor make_output(const OutputSpec& spec, c10::DeviceIndex device) {
  return make_tensor(spec.size, spec.stride, spec.dtype, device, spec.layout);
}

Binding address_of(const at::Tensor& tensor) {
  const CardView view = view_of(tensor, Frame::Stick);
  return {view.address, view.bytes};
}

void launch(const Call& call, const EagerPlan& plan, const std::vector<at::Tensor>& made) {
  c10::DataPtr pool;
  if (plan.temporary_bytes > 0) {
    pool = allocate_storage(call.device, untyped_layout(plan.temporary_bytes),
                            c10::ScalarType::Undefined, plan.temporary_bytes);
  }
  PhiloxState random;
  if (plan.random_numbers > 0) {
    random = take_random(call.generator, call.device, plan.random_numbers);
  }
  std::vector<Binding> bindings;
  bindings.reserve(plan.symbols.size());
  using Kind = SymbolSource::Kind;
  for (const SymbolSource& source : plan.symbols) {
    switch (source.kind) {
      case Kind::Argument: {
        const CardView& view = std::get<ViewSpec>(call.specs.at(source.index)).view;
        bindings.push_back({view.address, view.bytes});
        break;
      }
      case Kind::Output:
        bindings.push_back(address_of(made.at(source.index)));
        break;
      case Kind::Temporary:
        bindings.push_back({card_storage(pool).address + static_cast<Address>(source.index),
                            plan.temporary_bytes - source.index});
        break;
      case Kind::Float:
        bindings.push_back(
            {float_word(std::get<ScalarSpec>(call.specs.at(source.index)).value, source.limit), 0});
        break;
      case Kind::Int:
        bindings.push_back({int_word(std::get<ScalarSpec>(call.specs.at(source.index)).value,
                                     source.fits, call.name),
                            0});
        break;
      case Kind::SeedLow:
        bindings.push_back({random.seed & 0xFFFFFFFFu, 0});
        break;
      case Kind::SeedHigh:
        bindings.push_back({random.seed >> 32, 0});
        break;
      case Kind::Counter:
        bindings.push_back({random.offset & 0xFFFFFFFFu, 0});
        break;
    }
  }
  plan.program.launch(call.device, bindings);
}

// Returns the tensors that the operation returns, or nothing if the card can't do it.
std::optional<std::vector<at::Tensor>> execute(Call& call) {
  const auto written = materialize_arguments(call);
  describe_arguments(call);
  auto plan = cached_operation_plan(call.key, call.name, call.specs);
  if (plan->is_unsupported) {
    return std::nullopt;
  }
  if (!plan->resizes.empty()) {
    for (const Resize& resize : plan->resizes) {
      resize_output(call.values.at(resize.argument).toTensor(), resize.size);
    }
    describe_arguments(call);
    plan = cached_operation_plan(call.key, call.name, call.specs);
    if (plan->is_unsupported) {
      return std::nullopt;
    }
    TORCH_INTERNAL_ASSERT(plan->resizes.empty());
  }
  std::vector<at::Tensor> made;
  std::vector<at::Tensor> returned;
  for (const OutputSpec& spec : plan->outputs) {
    if (spec.argument >= 0) {
      returned.push_back(call.values.at(spec.argument).toTensor());
    } else {
      made.push_back(make_output(spec, call.device));
      returned.push_back(made.back());
    }
  }
  if (!plan->program.empty()) {
    launch(call, *plan, made);
  }
  for (const auto& [values, original] : written) {
    if (!values.is_same_size(original)) {
      resize_output(original, values.sizes());
    }
    copy_tensor(values, original, false);
    for (at::Tensor& tensor : returned) {
      if (tensor.is_same(values)) {
        tensor = original;
      }
    }
  }
  return returned;
}

}  // namespace

void run_operation(const std::string& name, const std::vector<at::Tensor>& arguments) {
  Call call;
  call.name = name;
  for (const at::Tensor& argument : arguments) {
    call.values.emplace_back(argument);
    call.types.push_back(nullptr);
    call.is_written.push_back(call.is_written.empty());
  }
  TORCH_INTERNAL_ASSERT(execute(call).has_value(), name, " can't be planned");
}

void operation_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  Call call;
  call.name =
      schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  for (size_t index = 0; index < count; ++index) {
    const c10::Argument& argument = schema.arguments()[index];
    call.values.push_back(std::move((*stack)[stack->size() - count + index]));
    call.types.push_back(argument.type().get());
    call.is_written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  torch::jit::drop(*stack, count);
  const c10::DeviceIndex device = device_of(call);
  const c10::DeviceGuard guard(c10::Device(c10::kPrivateUse1, device));
  const std::vector<c10::IValue> original = call.values;
  auto returned = execute(call);
  if (!returned) {
    stack->insert(stack->end(), original.begin(), original.end());
    run_on_cpu(op, stack);
    return;
  }
  for (at::Tensor& tensor : *returned) {
    stack->emplace_back(std::move(tensor));
  }
}

void register_operations(const std::map<std::string, std::vector<int64_t>>& names) {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                         __LINE__);  // kept: dropping it would unregister the kernels
  for (const auto& [name, by_value] : names) {
    if (!by_value.empty()) {
      value_arguments()[name] = by_value;
    }
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&operation_kernel>());
  }
}

}  // namespace spyre
