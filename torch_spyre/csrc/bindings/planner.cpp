// The planner as the runtime sees it: calls into torch_spyre.ops and torch_spyre.ir.
#include "runtime/planner.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/dtype.h"

namespace py = pybind11;

namespace spyre {
namespace {

py::tuple to_tuple(c10::IntArrayRef values) {
  py::tuple result(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    result[i] = values[i];
  }
  return result;
}

py::object to_python(const c10::Scalar& number) {
  if (number.isBoolean()) {
    return py::bool_(number.toBool());
  }
  if (number.isIntegral(false)) {
    return py::int_(number.toLong());
  }
  return py::float_(number.toDouble());
}

py::object to_python(const c10::IValue& value) {
  if (value.isNone()) {
    return py::none();
  }
  if (value.isString()) {
    return py::str(value.toStringRef());
  }
  if (value.isIntList()) {
    return to_tuple(value.toIntVector());
  }
  if (value.isBoolList() || value.isDoubleList()) {
    py::list numbers;
    for (const c10::IValue& number : value.toListRef()) {
      numbers.append(to_python(number.toScalar()));
    }
    return py::tuple(numbers);
  }
  if (value.isDevice()) {
    return py::str(value.toDevice().str());
  }
  TORCH_CHECK(value.isInt() || value.isBool() || value.isDouble(), "the planner can't be given a ",
              value.tagKind());
  return to_python(value.toScalar());
}

std::vector<int64_t> integers(const py::handle& values) {
  return values.cast<std::vector<int64_t>>();
}

SymbolSource to_source(const py::handle& bind) {
  using Kind = SymbolSource::Kind;
  static const std::unordered_map<std::string, Kind> kinds = {
      {"arg", Kind::Argument},       {"out", Kind::Output},          {"temp", Kind::Temporary},
      {"scalar_float", Kind::Float}, {"scalar_int", Kind::Int},      {"seed_low", Kind::SeedLow},
      {"seed_high", Kind::SeedHigh}, {"rng_counter", Kind::Counter},
  };
  SymbolSource source;
  source.kind = kinds.at(bind.attr("kind").cast<std::string>());
  source.index = bind.attr("index").cast<int64_t>();
  source.limit = bind.attr("limit").cast<double>();
  if (const py::object fits = bind.attr("fits"); !fits.is_none()) {
    source.fits = scalar_type(fits);
  }
  return source;
}

OutputSpec to_output(const py::handle& output) {
  OutputSpec spec;
  if (output.is_none()) {
    spec.argument = OutputSpec::kUndefined;
    return spec;
  }
  if (py::isinstance<py::int_>(output)) {
    spec.argument = output.cast<int>();
    return spec;
  }
  spec.size = integers(output.attr("size"));
  spec.stride = integers(output.attr("stride"));
  spec.dtype = scalar_type(output.attr("dtype"));
  spec.layout = std::make_shared<SpyreTensorLayout>(
      integers(output.attr("device_size")), integers(output.attr("stride_map")),
      static_cast<DataFormat>(output.attr("format").cast<int>()));
  return spec;
}

std::shared_ptr<const EagerPlan> to_plan(const py::handle& from) {
  auto plan = std::make_shared<EagerPlan>();
  for (const py::handle launch : from.attr("launches")) {
    EagerLaunch& made = plan->launches.emplace_back();
    made.program.bytes = launch.attr("program").cast<std::string>();
    for (const py::handle bind : launch.attr("symbols")) {
      made.symbols.push_back(to_source(bind));
    }
  }
  for (const py::handle output : from.attr("outputs")) {
    plan->outputs.push_back(to_output(output));
  }
  for (const py::handle resize : from.attr("resize")) {
    const auto pair = resize.cast<py::tuple>();
    plan->resizes.push_back({pair[0].cast<int>(), integers(pair[1])});
  }
  plan->temporary_bytes = from.attr("temp_bytes").cast<int64_t>();
  plan->random_numbers = from.attr("rng_offset").cast<int64_t>();
  return plan;
}

DmaNest to_nest(const py::handle& from) {
  const auto fields = from.cast<py::tuple>();
  DmaNest nest;
  nest.range = integers(fields[0]);
  nest.device_stride = integers(fields[1]);
  nest.host_stride = integers(fields[2]);
  nest.device_offset = fields[3].cast<int64_t>();
  nest.host_offset = fields[4].cast<int64_t>();
  nest.is_padding = fields[5].cast<bool>();
  return nest;
}

// Python's exceptions travel on as themselves.
template <typename Function>
auto in_python(Function&& function) {
  const py::gil_scoped_acquire locked;
  try {
    return function();
  } catch (py::error_already_set& error) {
    error.restore();
    python_error same;
    same.persist();
    throw same;
  }
}

class PythonPlanner final : public Planner {
 public:
  std::shared_ptr<const EagerPlan> plan_operation(
      const std::string& name, const std::vector<ArgumentSpec>& arguments) override {
    return in_python([&] {
      const py::module_ eager = py::module_::import("torch_spyre.ops.eager");
      py::list metas;
      for (size_t index = 0; index < arguments.size(); ++index) {
        metas.append(to_meta(eager, arguments[index], index));
      }
      try {
        return to_plan(eager.attr("plan_for_cpp")(name, py::tuple(metas)));
      } catch (py::error_already_set& error) {
        if (!error.matches(eager.attr("UnsupportedError"))) {
          throw;
        }
        auto plan = std::make_shared<EagerPlan>();
        plan->is_unsupported = true;
        return std::shared_ptr<const EagerPlan>(plan);
      }
    });
  }

  std::vector<DmaNest> plan_transfer(const CardView& view, c10::IntArrayRef host_stride,
                                     bool fill_padding) override {
    return in_python([&] {
      const py::module_ ir = py::module_::import("torch_spyre.ir");
      const SpyreTensorLayout& layout = *view.storage->layout;
      const py::object storage = ir.attr("Storage")(
          to_tuple(layout.device_size()), to_tuple(layout.stride_map()), view.storage->numel);
      const py::object plan =
          ir.attr("copy_plan")(storage, to_tuple(view.size), to_tuple(view.stride), view.offset,
                               to_tuple(host_stride), fill_padding);
      std::vector<DmaNest> nests;
      for (const py::handle nest : plan) {
        nests.push_back(to_nest(nest));
      }
      return nests;
    });
  }

 private:
  static py::object to_meta(const py::module_& eager, const ArgumentSpec& argument, size_t index) {
    const auto* list = std::get_if<ListSpec>(&argument);
    if (list == nullptr) {
      return std::visit([&](const auto& item) { return item_meta(eager, item, index); }, argument);
    }
    py::tuple items(list->items.size());
    for (size_t i = 0; i < list->items.size(); ++i) {
      items[i] =
          std::visit([&](const auto& item) { return item_meta(eager, item, list->first + i); },
                     list->items[i]);
    }
    return items;
  }

  static py::object item_meta(const py::module_& eager, const ViewSpec& spec, size_t index) {
    const SpyreTensorLayout& layout = *spec.view.storage->layout;
    return eager.attr("TensorMeta")(
        py::arg("size") = to_tuple(spec.view.size), py::arg("stride") = to_tuple(spec.view.stride),
        py::arg("offset") = spec.view.offset,
        py::arg("dtype") = torch_dtype(spec.view.storage->dtype),
        py::arg("device_size") = to_tuple(layout.device_size()),
        py::arg("stride_map") = to_tuple(layout.stride_map()),
        py::arg("storage_numel") = spec.view.storage->numel, py::arg("index") = index,
        py::arg("alias") = spec.alias, py::arg("distance") = spec.distance);
  }
  static py::object item_meta(const py::module_& eager, const ScalarSpec& spec, size_t index) {
    return eager.attr("ScalarMeta")(
        py::arg("dtype") = torch_dtype(spec.dtype), py::arg("index") = index,
        py::arg("is_wrapped") = spec.is_wrapped, py::arg("value") = to_python(spec.value));
  }
  static py::object item_meta(const py::module_&, const c10::IValue& value, size_t) {
    return to_python(value);
  }
  static py::object item_meta(const py::module_&, const ListSpec&, size_t) {
    TORCH_INTERNAL_ASSERT(false, "a list of lists");
  }
};

}  // namespace

void bind_planner(py::module_&) { set_planner(std::make_unique<PythonPlanner>()); }

}  // namespace spyre
