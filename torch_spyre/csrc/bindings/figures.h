// What Python is told of a card, in one form for tests and users.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "card/driver.h"
#include "card/program.h"

namespace spyre {

pybind11::dict to_dict(const CardProperties& properties);
pybind11::dict to_dict(const Counters& counters);

// What one launch costs: totals, and the same for each step in `steps`.
pybind11::dict program_figures(const Program& program);

// "DmaError" and so on, both ways. Throws std::invalid_argument for a name that is none.
CardFault::Kind fault_kind(const std::string& name);

}  // namespace spyre
