#include "runtime/trace_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/cards.h"

namespace spyre {

LabelledCalls labelled_calls(const std::vector<Activity>& activities) {
  LabelledCalls calls;
  for (const Activity& activity : activities) {
    if (!activity.labels) continue;
    if (calls.number.emplace(activity.labels.get(), calls.first.size()).second) {
      calls.first.push_back(&activity);
    }
  }
  return calls;
}

std::string calls_json(const LabelledCalls& calls) {
  std::string kernels;
  for (const Activity* call : calls.first) {
    std::string steps;
    const size_t count = std::min(call->labels->size(), call->figures->steps.size());
    for (size_t i = 0; i < count; ++i) {
      const StepLabel& label = (*call->labels)[i];
      const StepFigures& step = call->figures->steps[i];
      steps += fmt::format(R"({}["{}", "{}", {}, {}, {}, {}, {}, {}, {}, {}, {}])",
                           i == 0 ? "" : ", ", escaped(label.op), escaped(label.layer),
                           step.nanoseconds, step.macs, step.bytes_read, step.bytes_written,
                           step.pt, step.sfp, step.memory, step.lx, step.ring);
    }
    kernels += fmt::format(R"({}{{"name": "{}", "steps": [{}]}})", kernels.empty() ? "" : ",\n",
                           escaped(call->name), steps);
  }
  return fmt::format(
      R"({{"version": 1, "columns": ["op", "layer", "ns", "MACs", "bytes read", "bytes written", )"
      R"("PT ns", "SFP ns", "LPDDR5 ns", "LX ns", "ring ns"], "kernels": [{}]}})",
      kernels);
}

std::string device_json(const std::vector<Activity>& activities) {
  std::set<c10::DeviceIndex> used;
  for (const Activity& activity : activities) used.insert(activity.device);
  std::string all;
  for (const c10::DeviceIndex device : used) {
    const CardProperties& card = driver(device).properties();
    all += fmt::format(
        R"({}{{"id": {}, "name": "{}", "totalGlobalMem": {}, "cores": {}, "LX bytes": {}, )"
        R"("MACs per ns": {}, "LPDDR5 bytes per ns": {}, "PCIe bytes per ns": {}}})",
        all.empty() ? "" : ", ", device, escaped(card.name), card.total_memory, card.cores,
        card.lx_bytes, card.mac_rate, card.memory_rate, card.pcie_rate);
  }
  return all;
}

StepFigures sum_of(const std::vector<StepFigures>& steps) {
  StepFigures all;
  for (const StepFigures& step : steps) {
    all.macs += step.macs;
    all.pt += step.pt;
    all.sfp += step.sfp;
    all.memory += step.memory;
    all.lx += step.lx;
    all.ring += step.ring;
  }
  return all;
}

std::string common_layer(const StepLabels& labels) {
  std::optional<std::string> common;
  for (const StepLabel& label : labels) {
    if (label.layer.empty()) continue;
    if (!common) {
      common = label.layer;
      continue;
    }
    // Up to a dot: "layers.1" is no part of "layers.10".
    while (!common->empty() && label.layer != *common && !label.layer.starts_with(*common + ".")) {
      const size_t dot = common->rfind('.');
      common->resize(dot == std::string::npos ? 0 : dot);
    }
  }
  return common.value_or("");
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace spyre
