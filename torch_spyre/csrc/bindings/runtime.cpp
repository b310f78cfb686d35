// What `torch.spyre` is made of: devices, memory, layouts, switches, counters.
#include <c10/util/strides.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/dtype.h"
#include "bindings/figures.h"
#include "layout/layout.h"
#include "runtime/allocator.h"
#include "runtime/cards.h"
#include "runtime/copy.h"
#include "runtime/dtypes.h"
#include "runtime/env.h"
#include "runtime/errors.h"
#include "runtime/fallback.h"
#include "runtime/generator.h"
#include "runtime/operation.h"
#include "runtime/planner.h"
#include "runtime/python_lock.h"
#include "runtime/register.h"
#include "runtime/stream.h"
#include "runtime/strides.h"
#include "runtime/view.h"
#include "runtime/weights.h"

namespace py = pybind11;

namespace spyre {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

c10::DeviceIndex to_index(int64_t index) {
  TORCH_CHECK(index >= -1 && index < 128, "Spyre device index ", index, " does not exist");
  return checked_index(static_cast<c10::DeviceIndex>(index));
}

const at::Tensor& on_card(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.device().is_privateuseone(), "expected a tensor on a spyre device, got ",
                   tensor.device());
  return tensor;
}

at::Tensor empty_with_layout(const std::vector<int64_t>& size, const py::object& dtype,
                             int64_t device, const SpyreTensorLayout& layout) {
  const c10::ScalarType type = scalar_type(dtype);
  check_size(size);
  check_layout(layout, type, product(size));
  const py::gil_scoped_release unlocked;
  return make_tensor(size, c10::contiguous_strides(size), type, to_index(device),
                     std::make_shared<SpyreTensorLayout>(layout));
}

void synchronize(int64_t device) {
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    if (device < 0 || device == index) {
      wait_for_device(index);
    }
  }
}

// Called by Python before it ends: an engine that lets go of a tensor later would need a lock that
// is gone. What goes wrong now nobody can be told.
void drain() {
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    try {
      if (!is_bad_fork()) {
        wait_for_device(index);
      }
    } catch (const std::exception&) {
    }
  }
}

void bind_devices(py::module_& m) {
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("check_environment", &check_environment);
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_device", [](int64_t index) { set_current_device(to_index(index)); });
  m.def("checked_index", [](int64_t index) { return static_cast<int>(to_index(index)); });
  m.def("init", [](int64_t index) { driver(to_index(index)); }, Unlocked());
  m.def("is_initialized", &any_open);
  m.def("is_bad_fork", &is_bad_fork);
  m.def("synchronize", &synchronize);
  m.def("drain", &drain);
  m.def("properties", [](int64_t index) { return to_dict(driver(to_index(index)).properties()); });
  m.def("set_stream", [](int64_t index, int64_t stream) {
    const c10::DeviceIndex device = to_index(index);
    TORCH_CHECK_VALUE(stream >= 0 && stream < kQueues, "there is no spyre stream ", stream,
                      ": ids run from 0 to ", kQueues - 1);
    set_current_queue(device, static_cast<QueueId>(stream));
  });
  m.def("now", [](int64_t index) { return driver(to_index(index)).now(); });
  m.def("default_generator", [](int64_t index) { return default_generator(to_index(index)); });
}

void bind_card_state(py::module_& m) {
  m.def("counters", [](int64_t index) { return to_dict(driver(to_index(index)).counters()); });
  m.def(
      "inject_fault",
      [](int64_t index, const std::string& kind, Address address, int core, int after) {
        driver(to_index(index)).inject({fault_kind(kind), address, core, after});
      },
      py::arg("device"), py::arg("kind"), py::arg("address") = 0, py::arg("core") = 0,
      py::arg("after") = 0);
  m.def("reset", [](int64_t index) { driver(to_index(index)).reset(); }, Unlocked());
  m.def("card_address",
        [](const at::Tensor& tensor) { return view_of(on_card(tensor), Frame::Stick).address; });
}

void bind_layout_access(py::module_& m) {
  m.def(
      "get_spyre_tensor_layout",
      [](const at::Tensor& tensor) { return *card_storage(on_card(tensor).storage()).layout; },
      py::arg("tensor"), "The device layout of the storage behind a Spyre tensor.");
  m.def(
      "set_spyre_tensor_layout",
      [](const at::Tensor& tensor, const SpyreTensorLayout& layout) {
        const py::gil_scoped_release unlocked;
        set_layout(on_card(tensor), layout);
      },
      py::arg("tensor"), py::arg("layout"),
      "Lays the storage of a Spyre tensor out anew; its values stay the same.");
  m.def(
      "copy_for_products",
      [](const at::Tensor& matrix) {
        const py::gil_scoped_release unlocked;
        // The kept tensor itself stays unknown to Python.
        return copy_for_products(on_card(matrix)).variable_data();
      },
      py::arg("matrix"),
      "A matrix (out, in) with `out` in the sticks: a copy that is kept until something is "
      "written.");
  m.def("empty_with_layout", &empty_with_layout, py::arg("size"), py::arg("dtype"),
        py::arg("device"), py::arg("layout"));
  m.def("get_downcast_warning", &downcast_warning,
        "Whether the first int64 tensor on the card warns that it is held in 32 bits.");
  m.def("set_downcast_warning", &set_downcast_warning, py::arg("on"),
        "Switches the int64 warning on (to be given once more) or off.");
}

void bind_plans(py::module_& m) {
  m.def("plan_cache_stats", [] {
    const PlanCacheStats stats = plan_cache_stats();
    py::dict result;
    result["hits"] = stats.hits;
    result["misses"] = stats.misses;
    result["entries"] = stats.entries;
    return result;
  });
  m.def("clear_plan_cache", &clear_plan_cache, Unlocked());
  m.def("fallback_counts", &fallback_counts);
  m.def("reset_fallback_counts", &reset_fallback_counts);
}

// Python as the runtime needs it: called back with the lock, which it may not hold.
void bind_start(py::module_& m) {
  m.def("start", [](const std::map<std::string, std::vector<int64_t>>& operations,
                    const std::vector<std::string>& traced) {
    static bool started = false;
    if (started) {
      return;
    }
    started = true;
    set_raise_overflow([](const std::string& message) {
      const py::gil_scoped_acquire locked;
      PyErr_SetString(PyExc_OverflowError, message.c_str());
      python_error error;
      error.persist();
      throw error;
    });
    set_python_lock({[]() -> void* {
                       const bool is_held = Py_IsInitialized() != 0 && PyGILState_Check() != 0;
                       return is_held ? PyEval_SaveThread() : nullptr;
                     },
                     [](void* held) { PyEval_RestoreThread(static_cast<PyThreadState*>(held)); }});
    set_collect_garbage([] {
      const py::gil_scoped_acquire locked;
      py::module_::import("gc").attr("collect")();
    });
    set_on_failure([](const char* phase, const char* kind, const std::string& message) {
      if (Py_IsInitialized() == 0) {
        return;
      }
      const py::gil_scoped_acquire locked;
      py::module_::import("torch_spyre.device.ffdc").attr("report_card")(phase, kind, message);
    });
    set_fallback_warning([](const std::string& name) {
      const py::gil_scoped_acquire locked;
      py::module_::import("torch_spyre.ops.fallbacks").attr("warn")(name);
    });
    register_hooks();
    register_serialization();
    register_operations(operations, traced);
  });
}

}  // namespace

void bind_runtime(py::module_& m) {
  bind_devices(m);
  bind_card_state(m);
  bind_layout_access(m);
  bind_plans(m);
  bind_planner(m);
  bind_start(m);
}

}  // namespace spyre
