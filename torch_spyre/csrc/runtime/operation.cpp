#include "runtime/operation.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
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
#include "runtime/weights.h"

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

// Per operation of the pointwise table, the arguments whose values belong into the key. Of all
// other operations every number's does.
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
  std::vector<at::Tensor> tensors;  // all arguments, then those of lists; undefined if it is none
  std::vector<Binding> addresses;   // of those on the card
  std::vector<ArgumentSpec> specs;
  std::string key;
};

// Are all arguments of kinds that a plan can depend on?
bool is_describable(const Call& call) {
  return std::all_of(call.values.begin(), call.values.end(), [](const c10::IValue& value) {
    return value.isTensor() || value.isNone() || value.isGenerator() || value.isString() ||
           value.isInt() || value.isBool() || value.isDouble() || value.isIntList() ||
           value.isBoolList() || value.isDoubleList() || value.isDevice() || value.isTensorList() ||
           value.isOptionalTensorList();
  });
}

std::vector<at::Tensor> listed_tensors(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& item : value.toListRef()) {
    tensors.push_back(item.isNone() ? at::Tensor() : item.toTensor());
  }
  return tensors;
}

// Indices may be on the CPU, as elsewhere in PyTorch, and a mask stands for the indices of what is
// true in it. Filling where one mask is true needs no indices.
void resolve_indices(Call& call, c10::DeviceIndex device) {
  const bool puts = call.name.find("index_put") != std::string::npos;
  if (!puts && call.name.find("::index.") == std::string::npos) {
    return;
  }
  c10::IValue& value = call.values[1];
  const auto given = listed_tensors(value);
  const bool is_fill =
      puts && call.values[2].toTensor().numel() == 1 && !call.values[3].toBool() &&
      std::count_if(given.begin(), given.end(), [](const auto& t) { return t.defined(); }) == 1;
  std::vector<std::optional<at::Tensor>> resolved;
  for (at::Tensor index : given) {
    if (!index.defined()) {
      resolved.emplace_back();
      continue;
    }
    if (index.device().is_cpu()) {
      index = index.to(c10::Device(c10::kPrivateUse1, device));
    }
    const bool is_mask = index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    if (!is_mask || (is_fill && index.scalar_type() == at::kBool)) {
      resolved.emplace_back(index);
      continue;
    }
    const at::Tensor& self = call.values[0].toTensor();
    for (int64_t dim = 0; dim < index.dim(); ++dim) {
      const auto at = static_cast<int64_t>(resolved.size()) + dim;
      TORCH_CHECK_INDEX(at < self.dim() && index.size(dim) == self.size(at),
                        "The shape of the mask ", index.sizes(), " at index ", dim,
                        " does not match the shape of the indexed tensor ", self.sizes(),
                        " at index ", at);
    }
    const at::Tensor places = index.nonzero();
    for (int64_t dim = 0; dim < index.dim(); ++dim) {
      resolved.emplace_back(places.select(1, dim));
    }
    if (index.dim() == 0) {  // a new dimension of one element or none
      resolved.emplace_back();
    }
  }
  value = c10::IValue(c10::List<std::optional<at::Tensor>>(resolved));
}

void collect_tensors(Call& call) {
  call.tensors.assign(call.values.size(), at::Tensor());
  for (size_t index = 0; index < call.values.size(); ++index) {
    const c10::IValue& value = call.values[index];
    if (value.isTensor()) {
      call.tensors[index] = value.toTensor();
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto listed = listed_tensors(value);
      call.tensors.insert(call.tensors.end(), listed.begin(), listed.end());
    }
  }
  call.addresses.assign(call.tensors.size(), Binding{});
}

c10::DeviceIndex device_of(const Call& call) {
  for (const at::Tensor& tensor : call.tensors) {
    if (tensor.defined() && tensor.device().is_privateuseone()) {
      return tensor.device().index();
    }
  }
  return current_device();
}

int first_alias(const Call& call, const at::Tensor& tensor) {
  int index = 0;
  while (!(call.tensors[index].defined() && call.tensors[index].is_alias_of(tensor))) {
    ++index;
  }
  return index;
}

ItemSpec describe_tensor(Call& call, size_t index, bool is_written) {
  const at::Tensor& tensor = call.tensors[index];
  if (tensor.device().is_privateuseone()) {
    if (tensor.device().index() != call.device) {
      throw_device_mix(call.name, c10::Device(c10::kPrivateUse1, call.device), tensor.device());
    }
    ViewSpec spec;
    spec.view = view_of(tensor, Frame::Stick);
    spec.alias = first_alias(call, tensor);
    spec.distance = tensor.storage_offset() - call.tensors[spec.alias].storage_offset();
    call.key.push_back('T');
    append_key(call.key, spec.alias);
    append_key(call.key, spec.distance);
    spec.view.append_key(call.key);
    call.addresses[index] = {spec.view.address, spec.view.bytes};
    return spec;
  }
  if (tensor.dim() != 0 || !tensor.device().is_cpu() || is_written) {
    throw_device_mix(call.name, c10::Device(c10::kPrivateUse1, call.device), tensor.device());
  }
  if (tensor.is_complex()) {
    device_format(tensor.scalar_type());  // says which dtypes there are
  }
  const bool is_wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  call.key.push_back('S');
  append_key(call.key, static_cast<int64_t>(tensor.scalar_type()) * 2 + (is_wrapped ? 1 : 0));
  return ScalarSpec{tensor.scalar_type(), is_wrapped, tensor.item()};
}

void append_list(Call& call, const c10::IValue& value, size_t first, bool is_written) {
  ListSpec list{first, {}};
  const size_t count = value.toListRef().size();
  call.key.push_back('L');
  append_key(call.key, static_cast<int64_t>(count));
  for (size_t i = first; i < first + count; ++i) {
    if (call.tensors[i].defined()) {
      list.items.push_back(describe_tensor(call, i, is_written));
    } else {
      call.key.push_back('0');
      list.items.emplace_back(c10::IValue());
    }
  }
  call.specs.emplace_back(std::move(list));
}

void append_number_value(Call& call, const c10::Scalar& number) {
  append_key(call.key,
             number.isIntegral(true) ? number.toLong() : std::bit_cast<int64_t>(number.toDouble()));
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

void append_values(Call& call) {
  const auto found = value_arguments().find(call.name);
  for (size_t index = 0; index < call.specs.size(); ++index) {
    const auto* number = std::get_if<ScalarSpec>(&call.specs[index]);
    const bool counts =
        number != nullptr && (found == value_arguments().end() ||
                              std::find(found->second.begin(), found->second.end(),
                                        static_cast<int64_t>(index)) != found->second.end());
    if (counts) {
      append_number_value(call, number->value);
    }
  }
}

void describe_arguments(Call& call) {
  collect_tensors(call);
  call.device = device_of(call);
  call.specs.clear();
  call.key.clear();
  call.key.reserve(512);
  call.key += call.name;
  call.key.push_back('\0');
  // Integers promote to it.
  append_key(call.key, static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  size_t listed = call.values.size();
  for (size_t index = 0; index < call.values.size(); ++index) {
    const c10::IValue& value = call.values[index];
    if (value.isTensor() && value.toTensor().defined()) {
      call.specs.push_back(std::visit([](auto&& item) { return ArgumentSpec(std::move(item)); },
                                      describe_tensor(call, index, call.is_written[index])));
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      append_list(call, value, listed, call.is_written[index]);
      listed += value.toListRef().size();
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
  append_values(call);
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
  using Kind = SymbolSource::Kind;
  for (const EagerLaunch& part : plan.launches) {
    bindings.clear();
    bindings.reserve(part.symbols.size());
    for (const SymbolSource& source : part.symbols) {
      switch (source.kind) {
        case Kind::Argument:
          bindings.push_back(call.addresses.at(source.index));
          break;
        case Kind::Output:
          bindings.push_back(address_of(made.at(source.index)));
          break;
        case Kind::Temporary:
          bindings.push_back({card_storage(pool).address + static_cast<Address>(source.index),
                              plan.temporary_bytes - source.index});
          break;
        case Kind::Float:
          bindings.push_back(
              {float_word(std::get<ScalarSpec>(call.specs.at(source.index)).value, source.limit),
               0});
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
          bindings.push_back(
              {(random.offset + static_cast<uint64_t>(source.index)) & 0xFFFFFFFFu, 0});
          break;
      }
    }
    part.program.launch(call.device, bindings, call.name);
  }
}

void note_writes(const Call& call) {
  size_t listed = call.values.size();
  for (size_t index = 0; index < call.values.size(); ++index) {
    const c10::IValue& value = call.values[index];
    const bool is_list = value.isTensorList() || value.isOptionalTensorList();
    const size_t count = is_list ? value.toListRef().size() : 1;
    const size_t first = is_list ? listed : index;
    listed += is_list ? count : 0;
    for (size_t i = first; call.is_written[index] && i < first + count; ++i) {
      const at::Tensor& tensor = call.tensors[i];
      if (tensor.defined() && tensor.device().is_privateuseone()) note_write(tensor.storage());
    }
  }
}

// Returns the tensors that the operation returns, or nothing if the card can't do it.
std::optional<std::vector<at::Tensor>> execute(Call& call) {
  lay_out_weight(call.name, call.values);
  const auto written = materialize_arguments(call);
  describe_arguments(call);
  auto plan = cached_operation_plan(call.key, call.name, call.specs);
  if (plan->is_unsupported) {
    return std::nullopt;
  }
  if (!plan->resizes.empty()) {
    for (const Resize& resize : plan->resizes) {
      resize_output(call.tensors.at(resize.argument), resize.size);
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
      returned.push_back(call.tensors.at(spec.argument));
    } else if (spec.argument == OutputSpec::kUndefined) {
      returned.emplace_back();
    } else {
      made.push_back(make_output(spec, call.device));
      returned.push_back(made.back());
    }
  }
  if (!plan->launches.empty()) {
    launch(call, *plan, made);
    note_writes(call);
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

static void push_results(const c10::FunctionSchema& schema, std::vector<at::Tensor> tensors,
                         torch::jit::Stack* stack) {
  const auto& returns = schema.returns();
  if (returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType) {
    stack->emplace_back(std::move(tensors));
    return;
  }
  for (size_t i = 0; i < returns.size(); ++i) {
    stack->emplace_back(std::move(tensors.at(i)));
  }
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
    if (argument.is_out() && call.values.back().isTensor()) {
      at::assert_no_internal_overlap(call.values.back().toTensor());
    }
    call.types.push_back(argument.type().get());
    call.is_written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  for (const c10::IValue& value : call.values) {
    if (value.isComplexDouble()) {
      device_format(c10::ScalarType::ComplexDouble);  // says which dtypes there are
    }
  }
  const bool is_ours = schema.name().starts_with("aten::") || schema.name().starts_with("spyre::");
  if (!is_describable(call) || !is_ours) {
    for (size_t index = 0; index < count; ++index) {
      (*stack)[stack->size() - count + index] = std::move(call.values[index]);
    }
    run_on_cpu(op, stack);
    return;
  }
  torch::jit::drop(*stack, count);
  collect_tensors(call);
  const c10::DeviceIndex device = device_of(call);
  const c10::DeviceGuard guard(c10::Device(c10::kPrivateUse1, device));
  const std::vector<c10::IValue> original = call.values;
  resolve_indices(call, device);
  auto returned = execute(call);
  if (!returned) {
    stack->insert(stack->end(), original.begin(), original.end());
    run_on_cpu(op, stack);
    return;
  }
  push_results(schema, std::move(*returned), stack);
}

void register_operations(const std::map<std::string, std::vector<int64_t>>& table,
                         const std::vector<std::string>& traced) {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                         __LINE__);  // kept: dropping it would unregister the kernels
  const auto implement = [](const std::string& name) {
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&operation_kernel>());
  };
  for (const auto& [name, by_value] : table) {
    value_arguments()[name] = by_value;
    implement(name);
  }
  for (const std::string& name : traced) {
    implement(name);
  }
}

}  // namespace spyre
