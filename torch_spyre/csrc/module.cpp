// The extension module torch_spyre._C. Each part binds itself.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"

namespace {

namespace py = pybind11;

void raise(const py::handle& type, const c10::Error& error) {
  PyErr_SetString(type.ptr(), error.what_without_backtrace());
}

// c10's exceptions as PyTorch's own functions give them to Python.
void translate(std::exception_ptr raised) {
  try {
    std::rethrow_exception(raised);
  } catch (python_error& error) {
    error.restore();
  } catch (const c10::IndexError& error) {
    raise(PyExc_IndexError, error);
  } catch (const c10::ValueError& error) {
    raise(PyExc_ValueError, error);
  } catch (const c10::TypeError& error) {
    raise(PyExc_TypeError, error);
  } catch (const c10::OutOfMemoryError& error) {
    raise(py::module_::import("torch").attr("OutOfMemoryError"), error);
  } catch (const c10::AcceleratorError& error) {
    raise(py::module_::import("torch").attr("AcceleratorError"), error);
  } catch (const c10::Error& error) {
    raise(PyExc_RuntimeError, error);
  }
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The compiled part of torch_spyre: card, clock, layouts and runtime.";
  py::register_local_exception_translator(&translate);
  spyre::bind_layout(m);
  spyre::bind_cost(m);
  spyre::bind_card(m);
  spyre::bind_runtime(m);
  spyre::bind_kernel(m);
  spyre::bind_activity(m);
  spyre::bind_distributed(m);
}
