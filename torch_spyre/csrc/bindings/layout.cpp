// `torch_spyre._C.SpyreTensorLayout`, `DataFormats` and `ElementArrangement`.
#include "layout/layout.h"

#include <pybind11/operators.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/dtype.h"
#include "runtime/dtypes.h"

namespace py = pybind11;

namespace spyre {
namespace {

using Sizes = std::vector<int64_t>;

DataFormat dtype_to_format(const py::handle& dtype) { return device_format(scalar_type(dtype)); }

void bind_formats(py::module_& m) {
  py::enum_<DataFormat> formats(m, "DataFormats", "Number formats of the card.");
  for (int value = 0; value < kDataFormats; ++value) {
    const auto format = static_cast<DataFormat>(value);
    formats.value(std::string(format_info(format).name).c_str(), format);
  }
  formats.def(
      "elems_per_stick", [](DataFormat format) { return elems_per_stick(format); },
      "Elements of this format in a stick of 128 bytes; 0 for INVALID.");

  py::enum_<ElementArrangement> arrangements(m, "ElementArrangement",
                                             "How elements lie within a stick.");
  for (const auto arrangement : {ElementArrangement::STANDARD, ElementArrangement::DL16_TO_FP32,
                                 ElementArrangement::QFP8CH, ElementArrangement::EXX2}) {
    arrangements.value(std::string(element_arrangement_name(arrangement)).c_str(), arrangement);
  }
}

}  // namespace

void bind_layout(py::module_& m) {
  bind_formats(m);

  m.def("get_device_dtype", &dtype_to_format, py::arg("dtype"),
        "The card's number format for a torch.dtype; TypeError if it has none.");

  py::class_<SpyreTensorLayout>(m, "SpyreTensorLayout",
                                R"(How a tensor lies in the memory of the card.

SpyreTensorLayout(host_size, dtype)
    the default: last dimension in the sticks
SpyreTensorLayout(host_size, host_strides, dtype, dim_order, element_arrangement=STANDARD)
    last dimension of dim_order in the sticks; a trailing -1: one element per stick
SpyreTensorLayout(device_size, stride_map, device_dtype, element_arrangement=STANDARD)
    exactly this

>>> SpyreTensorLayout([512, 256], torch.float16)
SpyreTensorLayout(device_size=[4, 512, 64], stride_map =[64, 256, 1], device_dtype=DataFormats.SEN169_FP16)
)")
      .def(py::init([](const Sizes& host_size, const py::object& dtype) {
             return SpyreTensorLayout::from_host(host_size, dtype_to_format(dtype));
           }),
           py::arg("host_size"), py::arg("dtype"))
      .def(py::init([](const Sizes& host_size, const Sizes& host_strides, const py::object& dtype,
                       const Sizes& dim_order, ElementArrangement element_arrangement) {
             return SpyreTensorLayout::from_host(host_size, host_strides, dtype_to_format(dtype),
                                                 dim_order, element_arrangement);
           }),
           py::arg("host_size"), py::arg("host_strides"), py::arg("dtype"), py::arg("dim_order"),
           py::arg("element_arrangement") = ElementArrangement::STANDARD)
      .def(py::init<Sizes, Sizes, DataFormat, ElementArrangement>(), py::arg("device_size"),
           py::arg("stride_map"), py::arg("device_dtype"),
           py::arg("element_arrangement") = ElementArrangement::STANDARD)
      .def_property_readonly("device_size", &SpyreTensorLayout::device_size)
      .def_property_readonly("stride_map", &SpyreTensorLayout::stride_map,
                             "Host elements per step along each device dimension; -1: none.")
      .def_property_readonly("device_dtype", &SpyreTensorLayout::device_dtype)
      .def_property_readonly("element_arrangement", &SpyreTensorLayout::element_arrangement)
      .def_property_readonly("device_strides", &SpyreTensorLayout::device_strides,
                             "Row-major strides of device_size, in elements.")
      .def_property_readonly("device_numel", &SpyreTensorLayout::device_numel,
                             "Elements on the card, padding included.")
      .def_property_readonly("nbytes", &SpyreTensorLayout::nbytes,
                             "Bytes on the card, padding included.")
      .def("elems_per_stick", &SpyreTensorLayout::elems_per_stick)
      .def("device_coordinates", &SpyreTensorLayout::device_coordinates, py::arg("host_offset"),
           "Coordinates within device_size of the element at a host offset of the storage.")
      .def("device_offset", &SpyreTensorLayout::device_offset, py::arg("host_offset"),
           "Elements from the start of the card's storage to the one at a host offset.")
      .def(
          "why_not_for",
          [](const SpyreTensorLayout& layout, int64_t host_numel) -> std::optional<std::string> {
            std::string reason = layout.why_not_for(host_numel);
            return reason.empty() ? std::nullopt : std::optional(std::move(reason));
          },
          py::arg("host_numel"),
          "None if a storage of that many host elements fits the layout, else the reason.")
      .def("block_start", &SpyreTensorLayout::block_start, py::arg("first"), py::arg("last"),
           "Start of the smallest block of the layout that holds both host offsets.")
      .def(py::self == py::self)
      .def("__hash__", &SpyreTensorLayout::hash)
      .def("__repr__", &SpyreTensorLayout::to_string)
      .def("__copy__", [](const SpyreTensorLayout& layout) { return layout; })
      .def(
          "__deepcopy__", [](const SpyreTensorLayout& layout, const py::dict&) { return layout; },
          py::arg("memo"))
      .def(py::pickle(
          [](const SpyreTensorLayout& layout) {
            return py::make_tuple(layout.device_size(), layout.stride_map(), layout.device_dtype(),
                                  layout.element_arrangement());
          },
          [](const py::tuple& state) {
            return SpyreTensorLayout(state[0].cast<Sizes>(), state[1].cast<Sizes>(),
                                     state[2].cast<DataFormat>(),
                                     state[3].cast<ElementArrangement>());
          }));
}

}  // namespace spyre
