// How cores walk the operands of a step: how many sticks an iteration takes and where a walk can
// lead. Validation, the clock, fault injection and the executor all ask here.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "program.h"

namespace spyre {

using Wide = __int128;  // offsets before they have been checked

inline bool is_kind(const StepRecord& step, StepKind kind) {
  return step.kind == static_cast<uint8_t>(kind);
}
// The operand of which an index chooses rows, `tile_stride` apart; -1: the step has none.
inline int table_of(const StepRecord& step) {
  if (is_kind(step, StepKind::Gather)) return 0;
  return is_kind(step, StepKind::Scatter) ? step.inputs : -1;
}
// A Scatter that combines what it writes with what the table holds.
inline bool accumulates_into_table(const StepRecord& step) {
  const auto opcode = static_cast<Opcode>(step.opcode);
  return is_kind(step, StepKind::Scatter) && opcode != Opcode::scatter &&
         opcode != Opcode::scatter_int;
}
inline constexpr int kIndex = 1;  // the operand that is the index, where there is a table
inline bool is_reduced(const StepRecord& step, int dim) { return (step.reduced >> dim & 1) != 0; }
inline bool is_relayout(const StepRecord& step) { return is_kind(step, StepKind::Ring); }
// Do cores make results together?
inline bool accumulates_in_rings(const StepRecord& step) {
  return step.ring != 0 && !is_relayout(step);
}
// How many of them.
inline int partners_of(const StepRecord& step) {
  return accumulates_in_rings(step) ? step.ring : 1;
}

inline bool is_device(const OperandRecord& operand) {
  return operand.space == static_cast<uint8_t>(Space::Device);
}
// Does it lie in the scratchpads of the cores that a table names?
inline bool is_owned(const OperandRecord& operand) {
  return operand.space == static_cast<uint8_t>(Space::Ring);
}
inline bool is_in_lx(const OperandRecord& operand) {
  return operand.space == static_cast<uint8_t>(Space::Lx) || is_owned(operand);
}
inline bool is_in_memory(const OperandRecord& operand) {
  return is_device(operand) || is_in_lx(operand);
}
inline Lanes lanes_of(const OperandRecord& operand) { return static_cast<Lanes>(operand.lanes); }
inline DataFormat format_of(const OperandRecord& operand) {
  return static_cast<DataFormat>(operand.format);
}

// The place of a core among those that take part: per-core tables are in this order.
inline int core_slot(uint32_t cores, int core) {
  return std::popcount(cores & ((uint32_t{1} << core) - 1));
}
inline bool has_core(uint32_t cores, int core) { return (cores >> core & 1) != 0; }

inline int64_t extent_at(const Program& program, const StepRecord& step, int slot, int dim) {
  const int64_t row = step.extent_count == 1 ? 0 : slot;
  return program.extents[step.extent + row * step.rank + dim];
}
inline int64_t base_at(const Program& program, const OperandRecord& operand, int slot) {
  return program.bases[operand.base + (operand.base_count == 1 ? 0 : slot)];
}
inline int64_t base_at(const Program& program, const MaskRecord& mask, int slot) {
  return program.bases[mask.base + (mask.base_count == 1 ? 0 : slot)];
}

// The owners of the parts of a core's slice, in the order of the parts.
inline std::span<const int64_t> owners_of(const Program& program, const StepRecord& step,
                                          const OperandRecord& operand, int slot) {
  return {program.bases.data() + operand.symbol + slot * step.ring, step.ring};
}

// Is the dimension walked, on any core? Strides of the others mean nothing.
bool is_walked(const Program& program, const StepRecord& step, int dim);

// The operands of a step, inputs then outputs, and its masks.
std::span<const OperandRecord> operands_of(const Program& program, const StepRecord& step);
std::span<const MaskRecord> masks_of(const Program& program, const StepRecord& step);

// Elements of one iteration: those of a stick of the widest Vector operand; 1 for steps that go
// element by element.
int lanes_per_iteration(const Program& program, const StepRecord& step);

// Sticks that an operand takes per iteration, rows of k and of tables not counted.
int tiles_of(const OperandRecord& operand, int lanes);

// Does the operand miss sticks in the last iteration of the stick dimension on this core?
bool has_tail(const StepRecord& step, const OperandRecord& operand, int core, int lanes);

// How many iterations a core makes; saturates at `kManyIterations`.
inline constexpr int64_t kManyIterations = int64_t{1} << 41;
int64_t iterations_of(const Program& program, const StepRecord& step, int slot);

// ---- Masks -------------------------------------------------------------------------------------

// Positions along the dimension count elements: `lanes` for each iteration. Along other dimensions
// a position is an iteration.
inline bool counts_lanes(const StepRecord& step, int dim) {
  return dim == (is_kind(step, StepKind::Matmul) ? step.lane_dim : step.stick_dim);
}

// The valid length of a mask, or the longest that a launch may bind.
int64_t longest_valid(const Program& program, const MaskRecord& mask);

// How many positions, from the core's first one, lie below it at these indices of the loops.
int64_t mask_count(const Program& program, const MaskRecord& mask, int slot,
                   std::span<const uint32_t> loops);

// ---- Where walks lead --------------------------------------------------------------------------

// Iterations [0, extent) of a core, or some of them: those from `first` on along `dim`. Each takes
// `units` pieces of memory (sticks; elements for Lanes::Element), `tile_stride` apart.
struct Box {
  std::array<int64_t, kStepRank> first{};
  std::array<int64_t, kStepRank> end{};
  int64_t units = 1;
};

// What a core touches through an operand in one visit of the step: at most two boxes that differ
// in `units`. Iterations that a mask leaves out altogether are not among them.
struct Walk {
  int64_t base = 0;
  int boxes = 0;
  std::array<Box, 2> box{};
};
// `loops` are the indices of the enclosing loops; valid lengths that a launch binds are taken as
// their longest.
Walk walk_of(const Program& program, const StepRecord& step, const OperandRecord& operand, int core,
             int lanes, std::span<const uint32_t> loops);

// The bytes a core touches lie in [first, end), counted from the start of the symbol or of LX.
// Where a mask leaves out everything, the first position is taken in all the same: the executor
// forms its address. Only for a core with iterations. `loops` are the counts of the enclosing
// loops: `reach_of` takes in all their iterations, `span_of` any single one.
struct Reach {
  Wide first = 0;
  Wide end = 0;
};
Reach reach_of(const Program& program, const StepRecord& step, const OperandRecord& operand,
               int core, int lanes, std::span<const uint32_t> loops);
Reach span_of(const Program& program, const StepRecord& step, const OperandRecord& operand,
              int core, int lanes, std::span<const uint32_t> loops);

}  // namespace spyre
