// What a trace holds besides events: the cards' limits, and what is in compiled kernels.
//
// A trace alone is then enough for utilisation, rooflines and time by layer (tools/trace). Kernels
// are described once each, not in every event.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/activity.h"

namespace spyre {

// The places of compiled graphs that launched something, each with a number.
struct LabelledCalls {
  std::vector<const Activity*> first;  // by number: the first launch
  std::unordered_map<const StepLabels*, size_t> number;
};
LabelledCalls labelled_calls(const std::vector<Activity>& activities);

// The description of these, as a JSON object.
std::string calls_json(const LabelledCalls& calls);
// The cards that were used, JSON objects with commas between them.
std::string device_json(const std::vector<Activity>& activities);

StepFigures sum_of(const std::vector<StepFigures>& steps);

// The module that all steps with a known one are in: "model.layers.3"; "" if there is none.
std::string common_layer(const StepLabels& labels);

// As the inside of a JSON string.
std::string escaped(const std::string& text);

}  // namespace spyre
