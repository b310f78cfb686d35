// torch.dtype in both directions.
#pragma once

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>

namespace spyre {

inline c10::ScalarType scalar_type(pybind11::handle dtype) {
  TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "expected a torch.dtype");
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

inline pybind11::object torch_dtype(c10::ScalarType dtype) {
  return pybind11::reinterpret_borrow<pybind11::object>(
      reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

}  // namespace spyre
