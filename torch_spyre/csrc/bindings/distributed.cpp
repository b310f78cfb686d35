// `torch_spyre._C._distributed`: what torch_spyre.distributed is made of.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "distributed/backend.h"

namespace py = pybind11;

namespace spyre {
namespace {

using distributed::Group;
using distributed::SpyreBackend;
using std::chrono::milliseconds;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// PyTorch copies the options of a group that it splits.
struct Options final : c10d::Backend::Options {
  using c10d::Backend::Options::Options;
};

void set_make_gloo(const py::function& make) {
  // Never let go: groups may be made until the process ends.
  auto* kept = new py::function(make);
  distributed::set_make_gloo(
      [kept](const StorePtr& store, int rank, int size, milliseconds timeout) {
        const py::gil_scoped_acquire locked;
        return (*kept)(store, rank, size, timeout).cast<BackendPtr>();
      });
}

BackendPtr make_backend(const StorePtr& store, int rank, std::string name,
                        std::vector<int64_t> ranks, milliseconds timeout) {
  auto group = std::make_shared<Group>(store, rank, std::move(name), std::move(ranks), timeout);
  return c10::make_intrusive<SpyreBackend>(std::move(group));
}

}  // namespace

void bind_distributed(py::module_& m) {
  py::module_::import("torch.distributed");  // has the base classes
  py::module_ module = m.def_submodule("_distributed", "The process-group backend `spyreccl`.");
  const auto unlocked = py::call_guard<py::gil_scoped_release>();

  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(module, "Options")
      .def("__deepcopy__",
           [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); });
  py::class_<SpyreBackend, c10d::Backend, c10::intrusive_ptr<SpyreBackend>>(module, "Backend")
      .def_property_readonly("options",
                             [](const SpyreBackend& self) {
                               return c10::make_intrusive<Options>(self.getBackendName(),
                                                                   self.timeout());
                             })
      // Ranks that a new group leaves out have nothing to do for it.
      .def("perform_nocolor_split", [](SpyreBackend&, const py::object&) {});
  module.def("set_make_gloo", &set_make_gloo, py::arg("make"));
  // Wrapped: it raises DistBackendError, which pybind11 alone takes for a RuntimeError.
  module.def("make_backend", torch::wrap_pybind_function_no_gil(&make_backend), py::arg("store"),
             py::arg("rank"), py::arg("name"), py::arg("ranks"), py::arg("timeout"));
  module.def(
      "close",
      [] {
        distributed::stop_signs();
        distributed::abandon_all("the process ends");
        distributed::begin_the_end();
      },
      unlocked, "Before the process ends: waits for nobody.");
}

}  // namespace spyre
