#include "walk.h"

#include <algorithm>

namespace spyre {
namespace {

// Widens a reach by `count` steps of `stride`.
void extend(Reach& reach, int64_t stride, int64_t count) {
  const Wide way = static_cast<Wide>(stride) * (count - 1);
  (way < 0 ? reach.first : reach.end) += way;
}

int64_t unit_bytes(const OperandRecord& operand) {
  return lanes_of(operand) == Lanes::Element ? element_bytes(format_of(operand)) : kStickBytes;
}

// The reach with the stick dimension cut to iterations [from, to), each of `tiles` sticks.
Reach part_reach(const Program& program, const StepRecord& step, const OperandRecord& operand,
                 int slot, int64_t from, int64_t to, int tiles) {
  Reach reach;
  reach.first = reach.end = base_at(program, operand, slot);
  for (int dim = 0; dim < step.rank; ++dim) {
    if (dim == step.stick_dim) {
      const Wide start = static_cast<Wide>(operand.stride[dim]) * from;
      reach.first += start;
      reach.end += start;
      extend(reach, operand.stride[dim], to - from);
    } else {
      extend(reach, operand.stride[dim], extent_at(program, step, slot, dim));
    }
  }
  if (tiles > 1) extend(reach, operand.tile_stride, tiles);
  reach.end += unit_bytes(operand);
  return reach;
}

}  // namespace

std::span<const OperandRecord> operands_of(const Program& program, const StepRecord& step) {
  return {program.operands.data() + step.first_operand,
          static_cast<size_t>(step.inputs) + step.outputs};
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

Reach reach_of(const Program& program, const StepRecord& step, const OperandRecord& operand,
               int core, int lanes, std::span<const uint32_t> loops) {
  const int slot = core_slot(step.cores, core);
  const int tiles = tiles_of(operand, lanes);
  const int64_t last =
      step.stick_dim < step.rank ? extent_at(program, step, slot, step.stick_dim) : 1;
  Reach reach;
  if (!has_tail(step, operand, core, lanes)) {
    reach = part_reach(program, step, operand, slot, 0, last, tiles);
  } else {
    reach = part_reach(program, step, operand, slot, last - 1, last, operand.tail_tiles);
    if (last > 1) {
      const Reach body = part_reach(program, step, operand, slot, 0, last - 1, tiles);
      reach.first = std::min(reach.first, body.first);
      reach.end = std::max(reach.end, body.end);
    }
  }
  for (size_t depth = 0; depth < loops.size(); ++depth) {
    extend(reach, operand.loop_stride[depth], loops[depth]);
  }
  return reach;
}

int64_t sticks_of(const Program& program, const StepRecord& step, const OperandRecord& operand,
                  int core, int lanes) {
  const int slot = core_slot(step.cores, core);
  if (iterations_of(program, step, slot) == 0) return 0;
  const int tiles = tiles_of(operand, lanes);
  int64_t sticks = 1;                    // of the dimensions that go from stick to stick
  int64_t within = unit_bytes(operand);  // bytes covered by those that stay within one
  for (int dim = 0; dim < step.rank; ++dim) {
    const int64_t extent = extent_at(program, step, slot, dim);
    if (extent == 1) continue;  // the stride was not checked
    const int64_t stride = std::abs(operand.stride[dim]);
    if (stride >= kStickBytes) {
      sticks *= extent;
    } else {
      within += stride * (extent - 1);
    }
  }
  sticks *= (within + kStickBytes - 1) / kStickBytes;
  int64_t tiled = sticks * tiles;
  if (has_tail(step, operand, core, lanes)) {
    const int64_t last = operand.stride[step.stick_dim] == 0
                             ? sticks
                             : sticks / extent_at(program, step, slot, step.stick_dim);
    tiled -= last * (tiles - operand.tail_tiles);
  }
  // Walks that overlap themselves can't touch more than what lies between their ends.
  const Reach reach = reach_of(program, step, operand, core, lanes);
  return static_cast<int64_t>(
      std::min<Wide>(tiled, (reach.end - reach.first + kStickBytes - 1) / kStickBytes));
}

}  // namespace spyre
