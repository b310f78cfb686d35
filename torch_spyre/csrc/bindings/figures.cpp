#include "bindings/figures.h"

#include <pybind11/stl.h>

#include <stdexcept>

#include "card/program.h"

namespace py = pybind11;

namespace spyre {

py::dict to_dict(const CardProperties& properties) {
  py::dict out;
  out["name"] = properties.name;
  out["total_memory"] = properties.total_memory;
  out["cores"] = properties.cores;
  out["lx_bytes"] = properties.lx_bytes;
  out["stick_bytes"] = properties.stick_bytes;
  out["host_threads"] = properties.host_threads;
  return out;
}

py::dict to_dict(const Counters& counters) {
  py::dict out;
  out["bytes_to_card"] = counters.bytes_to_card;
  out["bytes_to_host"] = counters.bytes_to_host;
  out["bytes_read"] = counters.bytes_read;
  out["bytes_written"] = counters.bytes_written;
  out["launches"] = counters.launches;
  out["transfers"] = counters.transfers;
  out["pt_busy_ns"] = counters.pt_busy;
  out["sfp_busy_ns"] = counters.sfp_busy;
  out["memory_busy_ns"] = counters.memory_busy;
  out["lx_busy_ns"] = counters.lx_busy;
  out["to_card_busy_ns"] = counters.to_card_busy;
  out["to_host_busy_ns"] = counters.to_host_busy;
  out["compute_busy_ns"] = counters.compute_busy;
  out["exchanges"] = counters.exchanges;
  out["bytes_out"] = counters.bytes_out;
  out["bytes_in"] = counters.bytes_in;
  out["link_busy_ns"] = counters.link_busy;
  out["lx_high_water"] = counters.lx_high_water;
  out["checked_bytes_read"] = counters.checked_bytes_read;
  out["checked_bytes_written"] = counters.checked_bytes_written;
  return out;
}

py::dict program_figures(const Program& program) {
  py::list steps;
  for (const StepFigures& step : program.figures) {
    py::dict out;
    out["visits"] = step.visits;
    out["cores"] = step.cores;
    out["bytes_read"] = step.bytes_read;
    out["bytes_written"] = step.bytes_written;
    out["lx_read"] = step.lx_read;
    out["lx_written"] = step.lx_written;
    out["ring_bytes"] = step.ring_bytes;
    out["macs"] = step.macs;
    out["nanoseconds"] = step.nanoseconds;
    out["pt_ns"] = step.pt;
    out["sfp_ns"] = step.sfp;
    out["memory_ns"] = step.memory;
    out["lx_ns"] = step.lx;
    out["ring_ns"] = step.ring;
    steps.append(out);
  }
  py::dict out;
  out["bytes_read"] = program.bytes_read;
  out["bytes_written"] = program.bytes_written;
  out["nanoseconds"] = program.nanoseconds;
  out["pt_ns"] = program.pt_busy;
  out["sfp_ns"] = program.sfp_busy;
  out["memory_ns"] = program.memory_busy;
  out["lx_ns"] = program.lx_busy;
  out["lx_high_water"] = program.lx_high_water;
  out["steps"] = steps;
  return out;
}

CardFault::Kind fault_kind(const std::string& name) {
  using Kind = CardFault::Kind;
  for (const Kind kind :
       {Kind::DmaError, Kind::EccError, Kind::CoreHang, Kind::CardLost, Kind::Internal}) {
    if (name == fault_name(kind)) return kind;
  }
  throw std::invalid_argument("unknown fault '" + name +
                              "'; use DmaError, EccError, CoreHang, CardLost or Internal");
}

}  // namespace spyre
