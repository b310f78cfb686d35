// What cards were asked to do, for explanations.
#include "runtime/activity.h"

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "runtime/trace_metadata.h"

namespace py = pybind11;

namespace spyre {
namespace {

const char* kind_name(Activity::Kind kind) {
  switch (kind) {
    case Activity::Kind::Kernel:
      return "kernel";
    case Activity::Kind::ToCard:
      return "to card";
    case Activity::Kind::ToHost:
      return "to host";
    case Activity::Kind::Exchange:
      return "exchange";
  }
  return "";
}

py::dict to_dict(const Activity& activity) {
  py::dict out;
  out["kind"] = kind_name(activity.kind);
  out["name"] = activity.name;
  out["device"] = static_cast<int>(activity.device);
  out["queue"] = activity.queue;
  out["begin"] = activity.begin;
  out["duration"] = activity.duration;
  out["bytes_read"] = activity.bytes_read;
  out["bytes_written"] = activity.bytes_written;
  out["program"] = activity.program;
  if (activity.figures) {  // of a kernel
    const StepFigures all = sum_of(activity.figures->steps);
    out["cores"] = activity.figures->cores;
    out["macs"] = all.macs;
    out["units"] = py::make_tuple(all.pt, all.sfp, all.memory, all.lx, all.ring);
  }
  return out;
}

}  // namespace

void bind_activity(py::module_& m) {
  m.def("start_recording", [] { start_recording(Listener::Explanation); });
  m.def("stop_recording", [] {
    py::list out;
    for (const Activity& activity : stop_recording(Listener::Explanation).activities) {
      out.append(to_dict(activity));
    }
    return out;
  });
  m.def("recorded", [] { return recorded(Listener::Explanation); });
}

}  // namespace spyre
