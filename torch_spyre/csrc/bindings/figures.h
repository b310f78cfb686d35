// What Python is told of a card, in one form for tests and users.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "card/driver.h"

namespace spyre {

pybind11::dict to_dict(const CardProperties& properties);
pybind11::dict to_dict(const Counters& counters);

// "DmaError" and so on, both ways. Throws std::invalid_argument for a name that is none.
const char* fault_name(CardFault::Kind kind);
CardFault::Kind fault_kind(const std::string& name);

}  // namespace spyre
