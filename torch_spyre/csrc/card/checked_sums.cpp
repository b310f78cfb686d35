// Checked mode: steps that accumulate.
#include <algorithm>
#include <unordered_map>

#include "checked_step.h"

namespace spyre {
namespace {

constexpr int kRows = 0, kColumns = 1;  // the operands of a Matmul

// The dimensions in `mask` along which an operand moves.
uint32_t moving(const CoreStep& step, int operand, uint32_t mask) {
  for (int dim = 0; dim < step.record->rank; ++dim) {
    if (step.operand[operand].record->stride[dim] == 0) mask &= ~(uint32_t{1} << dim);
  }
  return mask;
}

}  // namespace

CheckedStep::Accumulation::Accumulation() { worst.fill(kValid); }

void CheckedStep::Accumulation::add(const Lane& lanes, int64_t count) {
  is_empty = false;
  for (int64_t i = 0; i < count; ++i) {
    worst[i] = std::min(worst[i], lanes[i]);
  }
}

void CheckedStep::Accumulation::add_valid() { is_empty = false; }

void CheckedStep::Accumulation::merge(const Accumulation& other) {
  is_empty = is_empty && other.is_empty;
  for (size_t i = 0; i < worst.size(); ++i) worst[i] = std::min(worst[i], other.worst[i]);
}

int64_t CheckedStep::limit(const StepWalk& walk, int lane_dim) const {
  int64_t lanes = bound_.lanes;
  for (int i = 0; i < record_.masks; ++i) {
    const CoreMask& mask = bound_.mask[i];
    if (mask.dim == kNoStickDim) continue;
    const int64_t index = walk.index(mask.dim);
    if (mask.dim == lane_dim) {
      lanes = std::min(lanes, mask.count - index * bound_.lanes);
    } else if (index >= mask.count) {
      return 0;
    }
  }
  return std::max<int64_t>(lanes, 0);
}

// ---- Rings -------------------------------------------------------------------------------------

void CheckedStep::join_ring(Results& results, bool stores) {
  ring_ = &results;
  stores_ = stores;
}

// A core alone writes its results at once.
void CheckedStep::give(const StepWalk& outer, const Accumulation& sums, size_t number) {
  if (ring_ == nullptr) {
    write_result(outer, sums);
  } else if (number == ring_->size()) {
    ring_->push_back(sums);
  } else {
    (*ring_)[number].merge(sums);
  }
}

void CheckedStep::before_results() {
  if (!stores_) return;
  size_t number = 0;
  StepWalk outer(bound_, ~static_cast<uint32_t>(record_.reduced), start_);
  do {
    write_result(outer, ring_->at(number++));
  } while (outer.next());
}

void CheckedStep::write_result(const StepWalk& outer, const Accumulation& sums) {
  const uint64_t offset = outer.offset(output_);
  // Nothing was accumulated: the neutral element, which is an infinity for some operations.
  const uint8_t neutral = launch_.mode == CheckMode::NonFinite ? kNonFinite : kValid;
  if (lanes_of(*bound_.operand[output_].record) != Lanes::Vector) {
    const uint8_t worst = *std::min_element(sums.worst.begin(), sums.worst.begin() + bound_.lanes);
    write_first(output_, offset, sums.is_empty ? neutral : worst);
    return;
  }
  // A lane that stands for itself may be padding: what it is worth shows where it is used.
  Lane lanes = sums.worst;
  if (sums.is_empty) lanes.fill(neutral);
  write_lanes(output_, offset, present_tiles(output_, outer), lanes);
}

// ---- Reductions --------------------------------------------------------------------------------

void CheckedStep::reduction() {
  size_t number = 0;
  StepWalk outer(bound_, ~static_cast<uint32_t>(record_.reduced), start_);
  do {
    Accumulation sums;
    accumulate(outer, sums);
    give(outer, sums, number++);
  } while (outer.next());
}

void CheckedStep::accumulate(const StepWalk& outer, Accumulation& sums) {
  constexpr auto kUse = "is reduced without a mask that leaves it out";
  const bool is_along_stick =
      record_.stick_dim < record_.rank && is_reduced(record_, record_.stick_dim);
  StepWalk walk(outer, record_.reduced);
  do {
    const int64_t count = limit(walk, record_.stick_dim);
    if (count == 0) continue;
    const uint64_t offset = walk.offset(0);
    const int tiles = present_tiles(0, walk);
    if (read_if_valid(0, offset, tiles)) {
      sums.add_valid();
      continue;
    }
    Lane lanes;
    read_lanes(0, offset, tiles, lanes);
    check_first_lanes(kUse, 0, offset, tiles, lanes, kNonFinite);
    if (is_along_stick) {
      const auto bad = std::find_if_not(lanes.begin(), lanes.begin() + count, is_defined);
      if (bad != lanes.begin() + count) {
        fail_lane(kUse, 0, offset, static_cast<int>(bad - lanes.begin()), *bad);
      }
    }
    sums.add(lanes, count);
  } while (walk.next());
}

// ---- Matmul ------------------------------------------------------------------------------------

void CheckedStep::matmul() {
  const uint32_t free_dims = ~static_cast<uint32_t>(record_.reduced);
  const uint8_t rows = check_rows();
  std::unordered_map<uint64_t, Lane> columns;  // by the place of their first row of k
  StepWalk outer(bound_, moving(bound_, kColumns, free_dims), start_);
  do {
    Accumulation sums;
    accumulate_column(outer, sums);
    columns.emplace(outer.offset(kColumns), sums.worst);
  } while (outer.next());

  size_t number = 0;
  StepWalk walk(bound_, free_dims, start_);
  do {
    Accumulation sums;
    sums.is_empty = false;  // without an element of k it is zero
    sums.worst = columns.at(walk.offset(kColumns));
    for (uint8_t& lane : sums.worst) lane = std::min(lane, rows);
    give(walk, sums, number++);
  } while (walk.next());
}

// All elements of A that are multiplied must be valid; returns the worst.
uint8_t CheckedStep::check_rows() {
  constexpr auto kUse = "is multiplied without a mask that leaves it out";
  uint8_t worst = kValid;
  const uint32_t reduced = record_.reduced;
  StepWalk walk(bound_, reduced | moving(bound_, kRows, ~reduced), start_);
  do {
    const int64_t count = limit(walk, record_.lane_dim);
    const int own = lanes_per_tile(kRows);
    const int tiles = static_cast<int>((count + own - 1) / own);
    if (count == 0 || read_if_valid(kRows, walk.offset(kRows), tiles)) continue;
    Lane lanes;
    read_lanes(kRows, walk.offset(kRows), tiles, lanes);
    for (int64_t i = 0; i < count; ++i) {
      if (!is_defined(lanes[i])) {
        fail_lane(kUse, kRows, walk.offset(kRows), static_cast<int>(i), lanes[i]);
      }
      worst = std::min(worst, lanes[i]);
    }
  } while (walk.next());
  return worst;
}

// One stick of columns of B, over all rows of k.
void CheckedStep::accumulate_column(const StepWalk& outer, Accumulation& sums) {
  constexpr auto kUse = "is multiplied without a mask that leaves it out";
  const int64_t row_stride = bound_.operand[kColumns].record->tile_stride;
  StepWalk walk(outer, record_.reduced);
  do {
    const int64_t count = limit(walk, record_.lane_dim);
    for (int64_t k = 0; k < count; ++k) {
      const uint64_t offset = walk.offset(kColumns) + k * row_stride;
      if (read_if_valid(kColumns, offset, 1)) {
        sums.add_valid();
        continue;
      }
      Lane lanes;
      read_lanes(kColumns, offset, 1, lanes);
      check_first_lanes(kUse, kColumns, offset, 1, lanes, kNonFinite);
      sums.add(lanes, bound_.lanes);
    }
  } while (walk.next());
}

}  // namespace spyre
