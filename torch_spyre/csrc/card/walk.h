// How cores walk the operands of a step: how many sticks an iteration takes and where a walk can
// lead. Validation, the clock, fault injection and the executor all ask here.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "program.h"

namespace spyre {

using Wide = __int128;  // offsets before they have been checked

inline bool is_in_memory(const OperandRecord& operand) {
  return operand.space == static_cast<uint8_t>(Space::Device) ||
         operand.space == static_cast<uint8_t>(Space::Lx);
}
inline bool is_device(const OperandRecord& operand) {
  return operand.space == static_cast<uint8_t>(Space::Device);
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

// The operands of a step, inputs then outputs.
std::span<const OperandRecord> operands_of(const Program& program, const StepRecord& step);

// Elements of one iteration: those of a stick of the widest Vector operand; 1 for steps that go
// element by element.
int lanes_per_iteration(const Program& program, const StepRecord& step);

// Sticks that an operand takes per iteration.
int tiles_of(const OperandRecord& operand, int lanes);

// Does the operand miss sticks in the last iteration of the stick dimension on this core?
bool has_tail(const StepRecord& step, const OperandRecord& operand, int core, int lanes);

// How many iterations a core makes; saturates at `kManyIterations`.
inline constexpr int64_t kManyIterations = int64_t{1} << 41;
int64_t iterations_of(const Program& program, const StepRecord& step, int slot);

// The bytes a core touches lie in [first, end), counted from the start of the symbol or of LX.
// With `loops`, over all iterations of the enclosing loops. Only for a core with iterations.
struct Reach {
  Wide first = 0;
  Wide end = 0;
};
Reach reach_of(const Program& program, const StepRecord& step, const OperandRecord& operand,
               int core, int lanes, std::span<const uint32_t> loops = {});

// Distinct sticks that a core touches through an operand.
int64_t sticks_of(const Program& program, const StepRecord& step, const OperandRecord& operand,
                  int core, int lanes);

}  // namespace spyre
