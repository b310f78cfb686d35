#include "walk.h"

#include <algorithm>

namespace spyre {
namespace {

// Loop iterations that are looked at one by one because a mask moves with them. Beyond it the
// reach of a walk is taken from the longest mask of all iterations, which is safe.
constexpr int64_t kEnumeratedLoops = 1 << 12;

// A place in the loops: some at an index, the others anywhere.
struct LoopPoint {
  std::span<const uint32_t> counts{};
  std::array<uint32_t, kLoopDepth> index{};
  std::array<bool, kLoopDepth> is_fixed{};
};

LoopPoint fixed(std::span<const uint32_t> loops) {
  LoopPoint point{loops};
  std::copy(loops.begin(), loops.end(), point.index.begin());
  std::fill_n(point.is_fixed.begin(), loops.size(), true);
  return point;
}

// Positions from the core's first one that count; at the loops that aren't fixed, the most.
int64_t longest_count(const Program& program, const MaskRecord& mask, int slot,
                      const LoopPoint& point) {
  int64_t count = longest_valid(program, mask) - base_at(program, mask, slot);
  for (size_t depth = 0; depth < point.counts.size(); ++depth) {
    const int64_t stride = mask.loop_stride[depth];
    const int64_t last = static_cast<int64_t>(point.counts[depth]) - 1;
    count -=
        point.is_fixed[depth] ? stride * point.index[depth] : std::min<int64_t>(0, stride * last);
  }
  return count;
}

int64_t unit_bytes(const OperandRecord& operand) {
  return lanes_of(operand) == Lanes::Element ? element_bytes(format_of(operand)) : kStickBytes;
}

// Cuts a box in two at `at` along a dimension; the second part takes `units` per iteration.
void split(Walk& walk, int dim, int64_t at, int64_t units) {
  Box rest = walk.box[0];
  walk.box[0].end[dim] = std::min(walk.box[0].end[dim], at);
  rest.first[dim] = std::max(rest.first[dim], at);
  rest.units = units;
  walk.box[walk.boxes++] = rest;
}

bool is_empty(const Box& box, int rank) {
  for (int dim = 0; dim < rank; ++dim) {
    if (box.first[dim] >= box.end[dim]) return true;
  }
  return box.units <= 0;
}

void drop_empty(Walk& walk, int rank) {
  int kept = 0;
  for (int i = 0; i < walk.boxes; ++i) {
    if (!is_empty(walk.box[i], rank)) walk.box[kept++] = walk.box[i];
  }
  walk.boxes = kept;
}

// Along masked dimensions at least `fewest` positions are taken to count.
Walk walk_at(const Program& program, const StepRecord& step, const OperandRecord& operand, int core,
             int lanes, const LoopPoint& point, int64_t fewest) {
  const int slot = core_slot(step.cores, core);
  const auto position = &operand - operands_of(program, step).data();
  const bool is_input = position < step.inputs;
  const bool is_second = position == 1 && is_input;
  Walk walk;
  walk.base = base_at(program, operand, slot);
  walk.boxes = 1;
  Box& box = walk.box[0];
  for (int dim = 0; dim < step.rank; ++dim) box.end[dim] = extent_at(program, step, slot, dim);
  box.units = tiles_of(operand, lanes);
  if (has_tail(step, operand, core, lanes)) {
    split(walk, step.stick_dim, box.end[step.stick_dim] - 1, operand.tail_tiles);
  }
  const bool is_matmul = is_kind(step, StepKind::Matmul);
  const bool is_row_of_k = is_second && is_matmul;
  if (is_row_of_k) box.units = lanes;
  // Elements of k for each unit: B has a row for every one, A a stick for several.
  const int64_t per_unit = is_row_of_k ? 1 : lanes / tiles_of(operand, lanes);
  for (const MaskRecord& mask : masks_of(program, step)) {
    const int64_t count = std::max(fewest, longest_count(program, mask, slot, point));
    if (mask.dim == kNoStickDim) {
      if (position == table_of(step)) box.units = count;
      continue;
    }
    if (!is_input) break;
    if (!counts_lanes(step, mask.dim)) {
      for (Box& part : walk.box) part.end[mask.dim] = std::min(part.end[mask.dim], count);
    } else {
      const int64_t iterations = (count + lanes - 1) / lanes;
      for (Box& part : walk.box) part.end[mask.dim] = std::min(part.end[mask.dim], iterations);
      const int64_t left = (count % lanes + per_unit - 1) / per_unit;
      if (is_matmul && left != 0 && left != box.units) {
        split(walk, mask.dim, count / lanes, left);
      }
    }
  }
  drop_empty(walk, step.rank);
  return walk;
}

// Widens a reach by a way along a stride.
void extend(Reach& reach, int64_t stride, Wide steps) {
  const Wide way = static_cast<Wide>(stride) * steps;
  (way < 0 ? reach.first : reach.end) += way;
}

Reach reach_of_box(const StepRecord& step, const OperandRecord& operand, int64_t base,
                   const Box& box) {
  Reach reach;
  reach.first = reach.end = base;
  for (int dim = 0; dim < step.rank; ++dim) {
    const Wide start = static_cast<Wide>(operand.stride[dim]) * box.first[dim];
    reach.first += start;
    reach.end += start;
    extend(reach, operand.stride[dim], static_cast<Wide>(box.end[dim]) - box.first[dim] - 1);
  }
  if (box.units > 1) extend(reach, operand.tile_stride, box.units - 1);
  reach.end += unit_bytes(operand);
  return reach;
}

// An empty reach is none yet.
void join(Reach& all, const Reach& part) {
  const bool is_none = all.first == all.end;
  all.first = is_none ? part.first : std::min(all.first, part.first);
  all.end = is_none ? part.end : std::max(all.end, part.end);
}

Reach reach_of_walk(const StepRecord& step, const OperandRecord& operand, const Walk& walk) {
  Reach reach;
  for (int i = 0; i < walk.boxes; ++i) {
    join(reach, reach_of_box(step, operand, walk.base, walk.box[i]));
  }
  return reach;
}

}  // namespace

bool is_walked(const Program& program, const StepRecord& step, int dim) {
  for (uint32_t row = 0; row < step.extent_count; ++row) {
    if (extent_at(program, step, static_cast<int>(row), dim) > 1) return true;
  }
  return false;
}

std::span<const OperandRecord> operands_of(const Program& program, const StepRecord& step) {
  return {program.operands.data() + step.first_operand,
          static_cast<size_t>(step.inputs) + step.outputs};
}

std::span<const MaskRecord> masks_of(const Program& program, const StepRecord& step) {
  return {program.masks.data() + step.first_mask, step.masks};
}

int lanes_per_iteration(const Program& program, const StepRecord& step) {
  int lanes = 1;
  for (const OperandRecord& operand : operands_of(program, step)) {
    if (is_in_memory(operand) && lanes_of(operand) == Lanes::Vector) {
      lanes = std::max(lanes, elems_per_stick(format_of(operand)));
    }
  }
  return lanes;
}

int tiles_of(const OperandRecord& operand, int lanes) {
  if (!is_in_memory(operand) || lanes_of(operand) != Lanes::Vector) return 1;
  return lanes / elems_per_stick(format_of(operand));
}

bool has_tail(const StepRecord& step, const OperandRecord& operand, int core, int lanes) {
  return has_core(step.tail_cores, core) && operand.tail_tiles != 0 &&
         operand.tail_tiles < tiles_of(operand, lanes);
}

int64_t iterations_of(const Program& program, const StepRecord& step, int slot) {
  int64_t iterations = 1;
  for (int dim = 0; dim < step.rank; ++dim) {
    const int64_t extent = extent_at(program, step, slot, dim);
    if (extent == 0) return 0;
    const Wide product = static_cast<Wide>(iterations) * extent;
    iterations = static_cast<int64_t>(std::min<Wide>(product, kManyIterations));
  }
  return iterations;
}

int64_t longest_valid(const Program& program, const MaskRecord& mask) {
  return mask.is_symbol != 0 ? program.symbols[mask.valid].bytes : program.extents[mask.valid];
}

int64_t mask_count(const Program& program, const MaskRecord& mask, int slot,
                   std::span<const uint32_t> loops) {
  return longest_count(program, mask, slot, fixed(loops));
}

Walk walk_of(const Program& program, const StepRecord& step, const OperandRecord& operand, int core,
             int lanes, std::span<const uint32_t> loops) {
  return walk_at(program, step, operand, core, lanes, fixed(loops), 0);
}

Reach span_of(const Program& program, const StepRecord& step, const OperandRecord& operand,
              int core, int lanes, std::span<const uint32_t> loops) {
  return reach_of_walk(step, operand,
                       walk_at(program, step, operand, core, lanes, LoopPoint{loops}, 1));
}

Reach reach_of(const Program& program, const StepRecord& step, const OperandRecord& operand,
               int core, int lanes, std::span<const uint32_t> loops) {
  LoopPoint point{loops};
  int64_t points = 1;
  for (const MaskRecord& mask : masks_of(program, step)) {
    for (size_t depth = 0; depth < loops.size(); ++depth) {
      if (mask.loop_stride[depth] == 0 || point.is_fixed[depth]) continue;
      point.is_fixed[depth] = true;
      points = std::min(points, kEnumeratedLoops) * loops[depth];
    }
  }
  if (points > kEnumeratedLoops) {
    point.is_fixed = {};
    points = 1;
  }
  Reach all;
  for (int64_t i = 0; i < points; ++i) {
    const Walk walk = walk_at(program, step, operand, core, lanes, point, 1);
    Reach reach = reach_of_walk(step, operand, walk);
    for (size_t depth = 0; depth < loops.size(); ++depth) {
      const int64_t stride = operand.loop_stride[depth];
      if (point.is_fixed[depth]) {
        reach.first += static_cast<Wide>(stride) * point.index[depth];
        reach.end += static_cast<Wide>(stride) * point.index[depth];
      } else {
        extend(reach, stride, static_cast<Wide>(loops[depth]) - 1);
      }
    }
    join(all, reach);
    for (size_t depth = loops.size(); depth-- > 0;) {  // the next point
      if (!point.is_fixed[depth]) continue;
      if (++point.index[depth] < loops[depth]) break;
      point.index[depth] = 0;
    }
  }
  return all;
}

}  // namespace spyre
