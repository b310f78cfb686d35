// Each file of this folder binds one part into torch_spyre._C.
#pragma once

#include <pybind11/pybind11.h>

namespace spyre {

void bind_layout(pybind11::module_& m);
void bind_cost(pybind11::module_& m);         // submodule _cost
void bind_card(pybind11::module_& m);         // submodule _card, for tests
void bind_runtime(pybind11::module_& m);      // what torch_spyre.device is made of
void bind_planner(pybind11::module_& m);      // called by bind_runtime
void bind_kernel(pybind11::module_& m);       // compiled kernels
void bind_activity(pybind11::module_& m);     // records of launches and transfers
void bind_distributed(pybind11::module_& m);  // submodule _distributed

}  // namespace spyre
