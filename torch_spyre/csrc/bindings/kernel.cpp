// Compiled kernels as the generated code sees them.
#include "runtime/kernel.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/dtype.h"
#include "runtime/bucket.h"
#include "runtime/dtypes.h"
#include "runtime/errors.h"

namespace py = pybind11;

namespace spyre {
namespace {

using Sizes = std::vector<int64_t>;

ArgView make_view(Sizes size, Sizes stride, const py::object& dtype, Sizes device_size,
                  Sizes stride_map, bool is_written, int64_t nbytes) {
  ArgView view;
  view.dtype = scalar_type(dtype);
  view.size = std::move(size);
  view.stride = std::move(stride);
  view.layout = std::make_shared<SpyreTensorLayout>(std::move(device_size), std::move(stride_map),
                                                    device_format(view.dtype));
  view.is_written = is_written;
  view.bytes = nbytes;
  return view;
}

using Step = std::tuple<std::string, std::vector<std::string>, std::string>;

ProgramNames to_names(std::string kernel, const std::vector<Step>& steps) {
  ProgramNames names{std::move(kernel), {}};
  for (const auto& [op, buffers, source] : steps) {
    names.steps.push_back({op, buffers, source});
  }
  return names;
}

std::shared_ptr<Kernel> labelled(const Kernel& kernel, std::string name,
                                 const std::vector<std::pair<std::string, std::string>>& steps) {
  StepLabels labels;
  for (const auto& [op, layer] : steps) labels.push_back({op, layer});
  return std::make_shared<Kernel>(kernel.labelled(std::move(name), std::move(labels)));
}

void launch(const Kernel& kernel, const py::handle& tensors, const Sizes& extents) {
  const auto items = py::reinterpret_steal<py::object>(
      PySequence_Fast(tensors.ptr(), "a kernel is launched on a list of tensors"));
  if (!items) {
    throw py::error_already_set();
  }
  c10::SmallVector<at::Tensor, 16> given;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
  for (Py_ssize_t index = 0; index < count; ++index) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), index);
    TORCH_CHECK_TYPE(THPVariable_Check(item), "kernel ", kernel.name(), ", argument ", index,
                     " is of type ", Py_TYPE(item)->tp_name, ", expected a tensor");
    given.push_back(THPVariable_Unpack(item));
  }
  const py::gil_scoped_release unlocked;
  try {
    kernel.launch(given, extents);
  } catch (const c10::Error&) {  // arguments that don't fit; what the card says was told before
    report_failure(Phase::Launch);
    throw;
  }
}

void bind_view(py::module_& m) {
  py::class_<ArgView>(m, "ArgView", "What the compiler knew of a kernel's argument.")
      .def(py::init(&make_view), py::kw_only(), py::arg("size"), py::arg("stride"),
           py::arg("dtype"), py::arg("device_size"), py::arg("stride_map"), py::arg("is_written"),
           py::arg("nbytes"))
      .def_property_readonly("size", [](const ArgView& view) { return view.size; })
      .def_property_readonly("stride", [](const ArgView& view) { return view.stride; })
      .def_property_readonly("dtype", [](const ArgView& view) { return torch_dtype(view.dtype); })
      .def_property_readonly("layout", [](const ArgView& view) { return *view.layout; })
      .def_readonly("is_written", &ArgView::is_written)
      .def_readonly("nbytes", &ArgView::bytes)
      .def("starts_alike_at", [](const ArgView& view, int64_t start) {
        return ViewFrame(view).holds_at(start, *view.layout);
      });
}

std::optional<c10::IntArrayRef> optional_ref(const std::optional<Sizes>& sizes) {
  return sizes ? std::optional<c10::IntArrayRef>(*sizes) : std::nullopt;
}

void bind_buckets(py::module_& m) {
  m.def(
      "to_bucket",
      [](const at::Tensor& tensor, const Sizes& size, const Sizes& stride, const Sizes& device_size,
         const Sizes& stride_map, const std::optional<Sizes>& own_map) {
        const py::gil_scoped_release unlocked;
        return to_bucket(tensor, {size, stride, device_size, stride_map}, optional_ref(own_map));
      },
      py::arg("tensor"), py::arg("size"), py::arg("stride"), py::arg("device_size"),
      py::arg("stride_map"), py::arg("own_map"),
      "A tensor's values in a bucket: in its own memory if it is laid out so, else a copy.");
  m.def(
      "from_bucket",
      [](const at::Tensor& bucket, const Sizes& size, const Sizes& stride,
         const std::optional<Sizes>& stride_map) {
        const py::gil_scoped_release unlocked;
        return from_bucket(bucket, size, stride, optional_ref(stride_map));
      },
      py::arg("bucket"), py::arg("size"), py::arg("stride"), py::arg("stride_map"),
      "The tensor in a bucket: in the same memory if its stride map is given, else a copy.");
  m.def("write_back", &write_back, py::arg("bucket"), py::arg("tensor"),
        py::call_guard<py::gil_scoped_release>(),
        "Writes a tensor's values in a bucket back to it, unless they are in its own memory.");
}

}  // namespace

void bind_kernel(py::module_& m) {
  bind_view(m);
  py::class_<Kernel, std::shared_ptr<Kernel>>(
      m, "Kernel", "A card program with the views of its arguments that it was compiled for.")
      .def(py::init([](const py::bytes& program, std::vector<ArgView> views, int64_t pool_bytes,
                       int64_t extents, std::string name, const std::vector<Step>& steps) {
             return std::make_shared<Kernel>(program, std::move(views), pool_bytes, extents,
                                             to_names(std::move(name), steps));
           }),
           py::arg("program"), py::arg("views"), py::arg("pool_bytes") = 0, py::arg("extents") = 0,
           py::arg("name") = "kernel", py::arg("steps") = std::vector<Step>())
      .def("launch", &launch, py::arg("tensors"), py::arg("extents") = Sizes(),
           "Queues the kernel on the current stream of the tensors' device.")
      .def("labelled", &labelled, py::arg("name"), py::arg("steps"),
           "The same program as a profile shows it in another place of a model: the operation of "
           "PyTorch's and the layer of each step.")
      .def("load", &Kernel::load, py::arg("device"), py::call_guard<py::gil_scoped_release>(),
           "Loads the program on a card ahead of the first launch; its number there.")
      .def_property_readonly("name", &Kernel::name)
      .def_property_readonly("program",
                             [](const Kernel& kernel) { return py::bytes(kernel.program()); })
      .def_property_readonly("views", &Kernel::views)
      .def_property_readonly("pool_bytes", &Kernel::pool_bytes)
      .def_property_readonly("extents", &Kernel::extents);
  m.def(
      "empty_strided_with_layout",
      [](const Sizes& size, const Sizes& stride, const py::object& dtype, int device_index,
         const Sizes& device_size, const Sizes& stride_map) {
        const c10::ScalarType type = scalar_type(dtype);
        const py::gil_scoped_release unlocked;
        return empty_strided_with_layout(size, stride, type,
                                         checked_index(static_cast<c10::DeviceIndex>(device_index)),
                                         device_size, stride_map);
      },
      py::arg("size"), py::arg("stride"), py::arg("dtype"), py::arg("device_index"),
      py::arg("device_size"), py::arg("stride_map"));
  bind_buckets(m);
}

}  // namespace spyre
