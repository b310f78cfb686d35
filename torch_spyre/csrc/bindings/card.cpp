// `torch_spyre._C._card`: a private software card for tests, without torch in between.
//
// Formats, opcodes and kinds are plain integers here, as they stand in a card program. Whatever
// may wait or run work lets go of Python's lock.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/figures.h"
#include "card/driver.h"
#include "card/formats.h"
#include "card/kernels.h"
#include "card/opcodes.h"
#include "card/program.h"

namespace py = pybind11;

namespace spyre {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

// ---- Errors ------------------------------------------------------------------------------------

// Python exceptions of this module; they live as long as the interpreter.
struct Errors {
  py::object out_of_memory;
  py::object host_out_of_memory;
  py::object fault;
};

Errors& errors() {
  static auto* created = new Errors;  // never destroyed: Python may be gone before the statics
  return *created;
}

void make_errors(py::module_& module) {
  const auto make = [&](const char* name, PyObject* base) {
    const std::string full = std::string("torch_spyre._C._card.") + name;
    auto type = py::reinterpret_steal<py::object>(PyErr_NewException(full.c_str(), base, nullptr));
    module.attr(name) = type;
    return type;
  };
  errors().out_of_memory = make("OutOfMemory", PyExc_MemoryError);
  errors().host_out_of_memory = make("HostOutOfMemory", errors().out_of_memory.ptr());
  errors().fault = make("CardFault", PyExc_RuntimeError);
}

void translate(std::exception_ptr raised) {
  try {
    std::rethrow_exception(raised);
  } catch (const OutOfMemory& error) {
    const auto& type = error.host_is_full ? errors().host_out_of_memory : errors().out_of_memory;
    PyErr_SetString(type.ptr(), error.what());
  } catch (const ProgramError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const ConversionOverflow& error) {
    PyErr_SetString(PyExc_OverflowError, error.what());
  } catch (const CardFault& error) {
    PyErr_SetString(errors().fault.ptr(),
                    (std::string(fault_name(error.kind)) + ": " + error.what()).c_str());
  }
}

// ---- Buffers -----------------------------------------------------------------------------------

// A buffer that a transfer uses, released under Python's lock by whichever thread is last.
struct HostBuffer {
  std::shared_ptr<py::buffer_info> info;
  int64_t bytes = 0;
};

HostBuffer host_buffer(const py::buffer& buffer, bool is_written) {
  auto info = std::shared_ptr<py::buffer_info>(new py::buffer_info(buffer.request(is_written)),
                                               [](py::buffer_info* held) {
                                                 py::gil_scoped_acquire lock;
                                                 delete held;
                                               });
  int64_t expected = info->itemsize;
  for (py::ssize_t dim = info->ndim; dim-- > 0;) {
    if (info->shape[dim] > 1 && info->strides[dim] != expected) {
      throw std::invalid_argument(
          "the buffer must be contiguous; strides belong in the descriptor");
    }
    expected *= info->shape[dim];
  }
  return {info, info->size * info->itemsize};
}

void check_size(const HostBuffer& buffer, const DmaDescriptor& how) {
  if (buffer.bytes < how.host_bytes) {
    throw std::invalid_argument("the descriptor uses " + std::to_string(how.host_bytes) +
                                " bytes of a buffer of " + std::to_string(buffer.bytes));
  }
}

// ---- The card ----------------------------------------------------------------------------------

CheckMode check_mode(const std::string& name) {
  static const std::map<std::string, CheckMode> kModes{
      {"off", CheckMode::Off}, {"memory", CheckMode::Memory}, {"nan", CheckMode::NonFinite}};
  auto found = kModes.find(name);
  if (found == kModes.end()) {
    throw std::invalid_argument("unknown check '" + name + "'; use off, memory or nan");
  }
  return found->second;
}

// Closing a card waits for work that may need Python's lock.
class Card {
 public:
  Card(int64_t memory_bytes, int threads, int index, const std::string& check)
      : driver_(open_software_card({index, memory_bytes, threads, check_mode(check)})) {}
  ~Card() {
    py::gil_scoped_release unlocked;
    driver_.reset();
  }
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  Driver& driver() { return *driver_; }

 private:
  std::unique_ptr<Driver> driver_;
};

py::dict memory_stats(Card& card) {
  const MemoryStats stats = card.driver().memory_stats();
  const auto convert = [](const MemoryStats::Stat& stat) {
    py::dict out;
    out["current"] = stat.current;
    out["peak"] = stat.peak;
    out["allocated"] = stat.allocated;
    out["freed"] = stat.freed;
    return out;
  };
  py::dict out;
  out["allocated_bytes"] = convert(stats.allocated_bytes);
  out["reserved_bytes"] = convert(stats.reserved_bytes);
  out["active_bytes"] = convert(stats.active_bytes);
  out["requested_bytes"] = convert(stats.requested_bytes);
  out["allocations"] = convert(stats.allocations);
  out["segments"] = convert(stats.segments);
  out["active_blocks"] = convert(stats.active_blocks);
  out["alloc_retries"] = stats.alloc_retries;
  out["ooms"] = stats.ooms;
  return out;
}

Ticket copy_to_card(Card& card, Address to, const DmaDescriptor& how, const py::buffer& from,
                    QueueId queue) {
  HostBuffer buffer = host_buffer(from, false);
  check_size(buffer, how);
  const void* data = buffer.info->ptr;
  py::gil_scoped_release unlocked;
  return card.driver().copy_to_card(queue, to, std::make_shared<const DmaDescriptor>(how), data,
                                    std::move(buffer.info));
}

Ticket copy_to_host(Card& card, Address from, const DmaDescriptor& how, const py::buffer& to,
                    QueueId queue) {
  HostBuffer buffer = host_buffer(to, true);
  check_size(buffer, how);
  void* data = buffer.info->ptr;
  py::gil_scoped_release unlocked;
  return card.driver().copy_to_host(queue, from, std::make_shared<const DmaDescriptor>(how), data,
                                    std::move(buffer.info));
}

ProgramId load(Card& card, const py::bytes& program, const std::optional<ProgramNames>& names) {
  const std::string_view bytes = program;
  return card.driver().load(std::as_bytes(std::span(bytes.data(), bytes.size())),
                            names.value_or(ProgramNames{}));
}

Ticket launch(Card& card, ProgramId program,
              const std::vector<std::pair<uint64_t, int64_t>>& bindings, QueueId queue) {
  std::vector<Binding> bound;
  for (const auto& [value, bytes] : bindings) bound.push_back({value, bytes});
  py::gil_scoped_release unlocked;
  return card.driver().launch(queue, program, bound);
}

Ticket host_function(Card& card, const py::function& function, QueueId queue) {
  auto held = std::shared_ptr<py::function>(new py::function(function), [](py::function* last) {
    py::gil_scoped_acquire lock;
    delete last;
  });
  py::gil_scoped_release unlocked;
  return card.driver().host_function(queue, [held] {
    py::gil_scoped_acquire lock;
    (*held)();
  });
}

void bind_card_class(py::module_& module) {
  py::class_<Ticket>(module, "Ticket", "A point in the card's work.")
      .def(py::init<>())
      .def_readonly("sequence", &Ticket::sequence)
      .def_readonly("end", &Ticket::end, "On the card's clock, in nanoseconds.")
      .def_readonly("queue", &Ticket::queue);

  py::class_<Card>(module, "Card", "A software card of its own.")
      .def(py::init<int64_t, int, int, const std::string&>(), py::arg("memory_bytes") = 0,
           py::arg("threads") = 0, py::arg("index") = 0, py::arg("check") = "off",
           "`check`: off, memory or nan, as SPYRE_CARD_CHECK=0, 1 and nan.")
      .def_property_readonly("properties",
                             [](Card& card) { return to_dict(card.driver().properties()); })
      .def(
          "allocate",
          [](Card& card, int64_t bytes, QueueId queue) {
            return card.driver().allocate(bytes, queue);
          },
          py::arg("bytes"), py::arg("queue") = 0, Release())
      .def(
          "free", [](Card& card, Address address) { card.driver().free(address); },
          py::arg("address"), Release())
      .def(
          "record_use",
          [](Card& card, Address address, QueueId queue) {
            card.driver().record_use(address, queue);
          },
          py::arg("address"), py::arg("queue"))
      .def("memory_stats", &memory_stats)
      .def("reset_peak_stats", [](Card& card) { card.driver().reset_peak_stats(); })
      .def("reset_accumulated_stats", [](Card& card) { card.driver().reset_accumulated_stats(); })
      .def(
          "empty_cache", [](Card& card) { card.driver().empty_cache(); }, Release())
      .def("free_memory", [](Card& card) { return card.driver().free_memory(); })
      .def("copy_to_card", &copy_to_card, py::arg("to"), py::arg("how"), py::arg("buffer"),
           py::arg("queue") = 0)
      .def("copy_to_host", &copy_to_host, py::arg("address"), py::arg("how"), py::arg("buffer"),
           py::arg("queue") = 0)
      .def("load", &load, py::arg("program"), py::arg("names") = py::none(),
           "Names are for the reports of checked mode.")
      .def(
          "unload", [](Card& card, ProgramId program) { card.driver().unload(program); },
          py::arg("program"))
      .def("launch", &launch, py::arg("program"), py::arg("bindings"), py::arg("queue") = 0,
           "Bindings are (value, bytes) pairs, one per symbol.")
      .def("host_function", &host_function, py::arg("function"), py::arg("queue") = 0)
      .def(
          "record", [](Card& card, QueueId queue) { return card.driver().record(queue); },
          py::arg("queue") = 0)
      .def(
          "block",
          [](Card& card, QueueId queue, Ticket until) { card.driver().block(queue, until); },
          py::arg("queue"), py::arg("until"))
      .def("is_done", [](Card& card, Ticket ticket) { return card.driver().is_done(ticket); })
      .def("is_idle", [](Card& card, QueueId queue) { return card.driver().is_idle(queue); })
      .def(
          "wait", [](Card& card, Ticket ticket) { card.driver().wait(ticket); }, py::arg("ticket"),
          Release())
      .def(
          "synchronize",
          [](Card& card, std::optional<QueueId> queue) {
            if (queue) {
              card.driver().synchronize(*queue);
            } else {
              card.driver().synchronize();
            }
          },
          py::arg("queue") = py::none(), Release())
      .def("counters", [](Card& card) { return to_dict(card.driver().counters()); })
      .def("now", [](Card& card) { return card.driver().now(); })
      .def(
          "inject",
          [](Card& card, const std::string& kind, Address address, int core, int after) {
            card.driver().inject({fault_kind(kind), address, core, after});
          },
          py::arg("kind"), py::arg("address") = 0, py::arg("core") = 0, py::arg("after") = 0)
      .def("reset", [](Card& card) { card.driver().reset(); }, Release());
}

void bind_names(py::module_& module) {
  using Strings = std::vector<std::string>;
  py::class_<StepName>(module, "StepName", "What the reports of checked mode call a step.")
      .def(py::init([](std::string op, Strings buffers, std::string source) {
             return StepName{std::move(op), std::move(buffers), std::move(source)};
           }),
           py::arg("op") = "", py::arg("buffers") = Strings{}, py::arg("source") = "");
  py::class_<ProgramNames>(module, "ProgramNames", "Names of a program: one StepName per step.")
      .def(py::init([](std::string kernel, std::vector<StepName> steps) {
             return ProgramNames{std::move(kernel), std::move(steps)};
           }),
           py::arg("kernel"), py::arg("steps") = std::vector<StepName>{});
}

void bind_descriptor(py::module_& module) {
  using Strides = std::vector<int64_t>;
  py::class_<DmaNest>(module, "DmaNest", "One loop nest of a transfer, outermost loop first.")
      .def(py::init([](Strides range, Strides device_stride, Strides host_stride,
                       int64_t device_offset, int64_t host_offset, bool is_padding) {
             return DmaNest{std::move(range),
                            std::move(device_stride),
                            std::move(host_stride),
                            device_offset,
                            host_offset,
                            is_padding};
           }),
           py::arg("range"), py::arg("device_stride"), py::arg("host_stride"),
           py::arg("device_offset") = 0, py::arg("host_offset") = 0, py::arg("is_padding") = false);
  py::class_<DmaDescriptor>(module, "DmaDescriptor", "What a transfer moves, and how.")
      .def(py::init([](int device_format, int host_format, std::vector<DmaNest> nests,
                       int64_t device_bytes, int64_t host_bytes) {
             return DmaDescriptor{static_cast<DataFormat>(device_format),
                                  static_cast<HostFormat>(host_format), std::move(nests),
                                  device_bytes, host_bytes};
           }),
           py::arg("device_format"), py::arg("host_format"), py::arg("nests"),
           py::arg("device_bytes"), py::arg("host_bytes"));
}

// ---- Formats, opcodes, constants ---------------------------------------------------------------

DataFormat data_format(int value) {
  if (value < 0 || value >= kDataFormats) {
    throw std::invalid_argument("no such format: " + std::to_string(value));
  }
  return static_cast<DataFormat>(value);
}

void bind_formats(py::module_& module) {
  py::dict formats;
  for (int value = 0; value < kDataFormats; ++value) {
    formats[py::str(std::string(format_info(static_cast<DataFormat>(value)).name))] = value;
  }
  module.attr("formats") = formats;
  py::dict hosts;
  for (int value = 0; value < kHostFormats; ++value) {
    hosts[py::str(std::string(host_format_name(static_cast<HostFormat>(value))))] = value;
  }
  module.attr("host_formats") = hosts;
  module.def("elems_per_stick", [](int format) { return elems_per_stick(data_format(format)); });
  module.def("decode", [](int format, uint32_t bits) -> py::object {
    const DataFormat decoded = data_format(format);
    if (format_info(decoded).domain == Domain::Float) {
      return py::float_(decode_float(decoded, bits));
    }
    return py::int_(decode_int(decoded, bits));
  });
  module.def(
      "encode",
      [](int format, const py::object& value, bool saturate) {
        const DataFormat encoded = data_format(format);
        if (format_info(encoded).domain != Domain::Float) {
          return encode_int(encoded, value.cast<int32_t>());
        }
        return saturate ? encode_float_saturating(encoded, value.cast<float>())
                        : encode_float(encoded, value.cast<float>());
      },
      py::arg("format"), py::arg("value"), py::arg("saturate") = false,
      "Rounds as the units do, or saturates as DMA and constants do.");
  module.def("can_convert", [](int host, int format) {
    if (host < 0 || host >= kHostFormats) throw std::invalid_argument("no such host format");
    return can_convert(static_cast<HostFormat>(host), data_format(format));
  });
}

void bind_isa(py::module_& module) {
  using kernels::Isa;
  static const std::map<std::string, Isa> kNames{
      {"baseline", Isa::Baseline}, {"v3", Isa::V3}, {"v4", Isa::V4}};
  module.def("isa", [] {
    for (const auto& [name, isa] : kNames) {
      if (isa == kernels::selected_isa()) return name;
    }
    throw std::logic_error("an unnamed version of the kernels");
  });
  module.def("isas", [] {
    std::vector<std::string> available;
    for (const auto& [name, isa] : kNames) {
      if (kernels::isa_available(isa)) available.push_back(name);
    }
    return available;
  });
  module.def("set_isa", [](const std::string& name) {
    auto found = kNames.find(name);
    if (found == kNames.end()) {
      throw std::invalid_argument("unknown version '" + name + "'; use v4, v3 or baseline");
    }
    kernels::select_isa(found->second);
  });
}

void bind_program_constants(py::module_& module) {
  py::dict opcodes;
  for (uint16_t value = 0; value < kOpcodes; ++value) {
    const OpcodeInfo& info = opcode_info(value);
    if (info.name.empty()) continue;
    opcodes[py::str(std::string(info.name))] = py::make_tuple(value, std::string(info.signature));
  }
  module.def(
      "figures",
      [](const py::bytes& program) {
        const std::string_view bytes = program;
        return program_figures(*load_program(std::as_bytes(std::span(bytes.data(), bytes.size()))));
      },
      py::arg("program"), "What one launch of a program costs: totals, and a row for each step.");
  module.attr("opcodes") = opcodes;  // name -> (value, signature)
  module.attr("CORES") = kCores;
  module.attr("QUEUES") = kQueues;
  module.attr("STICK_BYTES") = kStickBytes;
  module.attr("LX_BYTES") = kLxBytes;
  module.attr("LX_RESERVED") = kLxReserved;
  module.attr("SPAN_BYTES") = kSpanBytes;
  module.attr("STEP_RANK") = kStepRank;
  module.attr("LOOP_DEPTH") = kLoopDepth;
  module.attr("PROGRAM_MAGIC") = kProgramMagic;
  module.attr("PROGRAM_VERSION") = kProgramVersion;
  module.attr("NO_STICK_DIM") = kNoStickDim;
}

}  // namespace

void bind_card(py::module_& m) {
  py::module_ module = m.def_submodule("_card", "The software card without torch, for tests.");
  make_errors(module);
  py::register_local_exception_translator(&translate);
  bind_names(module);
  bind_card_class(module);
  bind_descriptor(module);
  bind_formats(module);
  bind_isa(module);
  bind_program_constants(module);
}

}  // namespace spyre
