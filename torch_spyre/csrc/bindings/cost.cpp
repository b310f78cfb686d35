// `torch_spyre._C._cost`: the card's clock for the compiler and the tests.
#include "cost/cost.h"

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "cost/link.h"

namespace py = pybind11;

namespace spyre {
namespace {

using cost::Breakdown;
using cost::Step;
using cost::Traffic;

void require_at_least(int64_t least,
                      std::initializer_list<std::pair<const char*, int64_t>> fields) {
  for (const auto& [name, value] : fields) {
    if (value < least) {
      throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) +
                                  ", it must be at least " + std::to_string(least));
    }
  }
}

void check(const Step& step) {
  require_at_least(0, {{"bytes_read", step.bytes_read},
                       {"bytes_written", step.bytes_written},
                       {"sfp_elements", step.sfp_elements},
                       {"lx_read", step.lx_read},
                       {"lx_written", step.lx_written},
                       {"rows", step.rows},
                       {"m", step.m},
                       {"n", step.n},
                       {"k", step.k},
                       {"batch", step.batch},
                       {"a_bytes", step.a_bytes},
                       {"b_bytes", step.b_bytes},
                       {"output_elements", step.output_elements},
                       {"relayout_bytes", step.relayout_bytes},
                       {"tile_rows_per_core", step.tile_rows_per_core},
                       {"tile_columns", step.tile_columns}});
  require_at_least(1, {{"cores", step.cores},
                       {"a_broadcast", step.a_broadcast},
                       {"b_broadcast", step.b_broadcast},
                       {"k_split", step.k_split},
                       {"relayout_split", step.relayout_split}});
  if (step.bits != 4 && step.bits != 8 && step.bits != 16 && step.bits != 32) {
    throw std::invalid_argument("bits is " + std::to_string(step.bits) +
                                ", the array computes with 4, 8, 16 or 32");
  }
}

// Builds a step from keywords by way of its attributes, so that the fields are listed once, below.
Step make_step(const py::kwargs& fields) {
  py::object step = py::cast(Step{});
  for (const auto& [name, value] : fields) {
    if (!py::hasattr(step, name)) {
      throw py::type_error("Step has no field '" + py::cast<std::string>(name) + "'");
    }
    py::setattr(step, name, value);
  }
  return py::cast<Step>(step);
}

void bind_link(py::module_& module) {
  using cost::Collective;
  py::enum_<Collective>(module, "Collective", "What cards do together.")
      .value("AllReduce", Collective::AllReduce)
      .value("AllGather", Collective::AllGather)
      .value("ReduceScatter", Collective::ReduceScatter)
      .value("AllToAll", Collective::AllToAll)
      .value("Broadcast", Collective::Broadcast)
      .value("Reduce", Collective::Reduce)
      .value("Gather", Collective::Gather)
      .value("Scatter", Collective::Scatter)
      .value("Send", Collective::Send)
      .value("Receive", Collective::Receive)
      .value("Barrier", Collective::Barrier);
  module.def(
      "link_traffic",
      [](Collective what, int64_t bytes, int cards, bool is_root) {
        require_at_least(0, {{"bytes", bytes}});
        require_at_least(1, {{"cards", cards}});
        const cost::LinkTraffic traffic = cost::link_traffic(what, bytes, cards, is_root);
        return std::pair(traffic.out, traffic.in);
      },
      py::arg("what"), py::arg("bytes"), py::arg("cards"), py::arg("is_root") = false,
      "Bytes that a collective sends out of and into one card.");
  module.def(
      "collective_nanoseconds",
      [](Collective what, int64_t bytes, int cards, bool is_root) {
        require_at_least(0, {{"bytes", bytes}});
        require_at_least(1, {{"cards", cards}});
        return cost::collective_nanoseconds(what, bytes, cards, is_root);
      },
      py::arg("what"), py::arg("bytes"), py::arg("cards"), py::arg("is_root") = false,
      "The busier direction of `link_traffic`.");
}

}  // namespace

void bind_cost(py::module_& m) {
  py::module_ module =
      m.def_submodule("_cost", "The card's clock: how long a step takes, from its description.");

  py::enum_<Traffic>(module, "Traffic", "The law that prices a step's LPDDR5 traffic.")
      .value("Fused", Traffic::Fused)
      .value("Restickify", Traffic::Restickify)
      .value("CrossRowReduction", Traffic::CrossRowReduction)
      .value("RowReduction", Traffic::RowReduction)
      .value("BroadcastPointwise", Traffic::BroadcastPointwise)
      .value("Matmul", Traffic::Matmul);

  py::class_<Step>(module, "Step", "What the clock needs to know of one step.")
      .def(py::init(&make_step))
      .def_readwrite("traffic", &Step::traffic)
      .def_readwrite("cores", &Step::cores)
      .def_readwrite("bytes_read", &Step::bytes_read)
      .def_readwrite("bytes_written", &Step::bytes_written)
      .def_readwrite("sfp_elements", &Step::sfp_elements)
      .def_readwrite("lx_read", &Step::lx_read)
      .def_readwrite("lx_written", &Step::lx_written)
      .def_readwrite("rows", &Step::rows)
      .def_readwrite("m", &Step::m)
      .def_readwrite("n", &Step::n)
      .def_readwrite("k", &Step::k)
      .def_readwrite("batch", &Step::batch)
      .def_readwrite("bits", &Step::bits)
      .def_readwrite("a_bytes", &Step::a_bytes)
      .def_readwrite("b_bytes", &Step::b_bytes)
      .def_readwrite("a_broadcast", &Step::a_broadcast)
      .def_readwrite("b_broadcast", &Step::b_broadcast)
      .def_readwrite("k_split", &Step::k_split)
      .def_readwrite("output_elements", &Step::output_elements)
      .def_readwrite("relayout_bytes", &Step::relayout_bytes)
      .def_readwrite("relayout_split", &Step::relayout_split)
      .def_readwrite("tile_rows_per_core", &Step::tile_rows_per_core)
      .def_readwrite("tile_columns", &Step::tile_columns);

  py::class_<Breakdown>(module, "Breakdown", "Each unit's share in nanoseconds, not rounded.")
      .def_readonly("pt", &Breakdown::pt)
      .def_readonly("sfp", &Breakdown::sfp)
      .def_readonly("memory", &Breakdown::memory)
      .def_readonly("lx", &Breakdown::lx)
      .def_readonly("ring", &Breakdown::ring);

  module.attr("MACS_PER_NANOSECOND") = cost::kMacRate;
  module.attr("BYTES_PER_NANOSECOND") = cost::kMemoryRate;
  module.def(
      "breakdown",
      [](const Step& step) {
        check(step);
        return cost::breakdown(step);
      },
      py::arg("step"), "Each unit's share of the step, in nanoseconds.");
  module.def(
      "nanoseconds",
      [](const Step& step) {
        check(step);
        return cost::nanoseconds(step);
      },
      py::arg("step"), "max(PT, SFP, LPDDR5, LX) + ring, rounded up to whole nanoseconds.");
  module.def(
      "ring_bytes",
      [](const Step& step) {
        check(step);
        return cost::ring_bytes(step);
      },
      py::arg("step"), "What goes round the ring, all cores together.");
  module.def(
      "relayed_bytes",
      [](int64_t bytes, int takers) {
        require_at_least(0, {{"bytes", bytes}, {"takers", takers}});
        return cost::relayed_bytes(bytes, takers);
      },
      py::arg("bytes"), py::arg("takers"),
      "What a part counts on the ring that one core sends to so many.");
  module.def(
      "dma_nanoseconds",
      [](int64_t bytes) {
        require_at_least(0, {{"bytes", bytes}});
        return cost::dma_nanoseconds(bytes);
      },
      py::arg("bytes"), "One transfer over the host link.");
  bind_link(module);
}

}  // namespace spyre
