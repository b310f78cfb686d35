// Checked mode: steps that follow an index, or go along one dimension.
#include <algorithm>

#include "checked_step.h"
#include "rows.h"

namespace spyre {

void CheckedStep::check_index(uint64_t offset) {
  touch_read(kIndex, offset);
  const uint8_t* states = shadow_of(kIndex).states(offset);
  const uint8_t state = *std::min_element(states, states + sizeof(int32_t));
  if (!is_defined(state)) fail_lane("is used as an index", kIndex, offset, 0, state);
}

void CheckedStep::gather() {
  const bool is_element = lanes_of(*bound_.operand[output_].record) == Lanes::Element;
  StepWalk indices(bound_, ~0U, start_);
  do {
    check_index(indices.offset(kIndex));
  } while (indices.next());
  for_each_indexed([&](const StepWalk& walk, uint64_t row) {
    Lane lanes;
    read_lanes(table_of(record_), row, 1, lanes);
    if (is_element) {
      write_element(output_, walk.offset(output_), lanes[0]);
    } else {
      write_lanes(output_, walk.offset(output_), present_tiles(output_, walk), lanes);
    }
  });
}

void CheckedStep::scatter() {
  constexpr int kSource = 0;
  constexpr auto kUse = "is accumulated by a scatter";
  const bool is_element = lanes_of(*bound_.operand[output_].record) == Lanes::Element;
  StepWalk indices(bound_, ~0U, start_);
  do {
    check_index(indices.offset(kIndex));
  } while (indices.next());
  for_each_indexed([&](const StepWalk& walk, uint64_t row) {
    const int tiles = present_tiles(kSource, walk);
    Lane lanes;
    read_lanes(kSource, walk.offset(kSource), tiles, lanes);
    if (accumulates_into_table(record_)) {
      Lane before;
      read_lanes(output_, row, 1, before);
      check_first_lanes(kUse, kSource, walk.offset(kSource), tiles, lanes, kNonFinite);
      check_first_lanes(kUse, output_, row, 1, before, kNonFinite);
      for (int i = 0; i < bound_.lanes; ++i) lanes[i] = std::min(lanes[i], before[i]);
    }
    if (is_element) {
      write_element(output_, row, lanes[0]);
    } else {
      write_lanes(output_, row, 1, lanes);
    }
  });
}

// Argsort, too: its results are valid if all elements are.
void CheckedStep::scan() {
  const bool is_sort = is_kind(record_, StepKind::Argsort);
  const bool is_element = lanes_of(*bound_.operand[output_].record) == Lanes::Element;
  const char* use = is_sort ? "is sorted" : "is part of a scan";
  StepWalk outer(bound_, ~static_cast<uint32_t>(record_.reduced), start_);
  do {
    Lane worst;
    worst.fill(kValid);
    StepWalk walk(outer, record_.reduced);
    do {
      const int tiles = present_tiles(0, walk);
      Lane lanes;
      read_lanes(0, walk.offset(0), tiles, lanes);
      check_first_lanes(use, 0, walk.offset(0), tiles, lanes, kNonFinite);
      for (int i = 0; i < bound_.lanes; ++i) worst[i] = std::min(worst[i], lanes[i]);
      if (is_sort) {
        write_element(output_, walk.offset(output_), kValid);
      } else if (is_element) {
        write_element(output_, walk.offset(output_), worst[0]);
      } else {
        write_lanes(output_, walk.offset(output_), present_tiles(output_, walk), worst);
      }
    } while (walk.next());
  } while (outer.next());
}

}  // namespace spyre
