#include "step.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "walk.h"

namespace spyre {

const StepTable& fast_steps() {
  // Matmul steps run for all cores at once; of Ring steps, these are the parts.
  static constexpr StepTable kSteps{run_pointwise, run_restickify, run_reduction,
                                    nullptr,       run_gather,     run_pointwise,
                                    run_scatter,   run_argsort,    run_scan};
  return kSteps;
}

int64_t CoreStep::iterations() const {
  // Zeros first: without one the product was checked, with one it may overflow.
  const auto end = extent.begin() + record->rank;
  if (std::find(extent.begin(), end, 0) != end) return 0;
  return std::accumulate(extent.begin(), end, int64_t{1}, std::multiplies<>());
}

// How many positions of the core, from its first one, lie below each mask's valid length.
static void bind_masks(const Machine& machine, int slot, std::span<const uint32_t> loops,
                       CoreStep& bound) {
  const Program& program = machine.program;
  const auto masks = masks_of(program, *bound.record);
  for (size_t i = 0; i < masks.size(); ++i) {
    const MaskRecord& mask = masks[i];
    int64_t count = mask.is_symbol != 0 ? static_cast<int64_t>(machine.bindings[mask.valid].value)
                                        : program.extents[mask.valid];
    count -= base_at(program, mask, slot);
    for (size_t depth = 0; depth < loops.size(); ++depth) {
      count -= mask.loop_stride[depth] * loops[depth];
    }
    bound.mask[i] = {mask.dim, count};
  }
}

CoreStep bind_step(const Machine& machine, uint32_t step, int core,
                   std::span<const uint32_t> loops) {
  const Program& program = machine.program;
  CoreStep bound;
  bound.record = &program.steps[step];
  bound.lanes = program.lanes[step];
  bound.core = core;
  const int slot = core_slot(bound.record->cores, core);
  for (int dim = 0; dim < bound.record->rank; ++dim) {
    bound.extent[dim] = extent_at(program, *bound.record, slot, dim);
  }
  if (bound.iterations() == 0) return bound;  // addresses of a core without work are not checked
  for (int i = 0; i < bound.operands(); ++i) {
    const OperandRecord& record = program.operands[bound.record->first_operand + i];
    CoreOperand& operand = bound.operand[i];
    operand.record = &record;
    operand.tiles = tiles_of(record, bound.lanes);
    bound.is_tail |= has_tail(*bound.record, record, core, bound.lanes);
    const auto space = static_cast<Space>(record.space);
    if (space == Space::Scalar) {
      operand.word = static_cast<kernels::Word>(machine.bindings[record.symbol].value);
      continue;
    }
    if (space == Space::Constant) {
      operand.word = program.constants[record.symbol];
      continue;
    }
    // Unsigned, because Iota may wrap; addresses were checked and don't.
    auto offset = static_cast<uint64_t>(base_at(program, record, slot));
    for (size_t depth = 0; depth < loops.size(); ++depth) {
      offset += static_cast<uint64_t>(record.loop_stride[depth]) * loops[depth];
    }
    if (space == Space::Iota) {
      operand.count = offset;
    } else if (space == Space::Lx) {
      operand.address = machine.lx + core * machine.lx_stride + offset;
    } else if (space == Space::Ring) {
      operand.address = machine.lx + offset;
      operand.owners = owners_of(program, *bound.record, record, slot);
    } else {
      operand.address = machine.device + machine.bindings[record.symbol].value + offset;
    }
  }
  bind_masks(machine, slot, loops, bound);
  return bound;
}

CoreStep slice_step(const CoreStep& step, int dim, int64_t begin, int64_t end) {
  CoreStep slice = step;
  slice.is_tail = step.is_tail && (dim != step.record->stick_dim || end == step.extent[dim]);
  slice.extent[dim] = end - begin;
  slice.start[dim] += begin;
  for (int i = 0; i < step.operands() && begin > 0; ++i) {
    CoreOperand& operand = slice.operand[i];
    const uint64_t offset = static_cast<uint64_t>(operand.record->stride[dim]) * begin;
    operand.count += offset;
    if (operand.address != nullptr) operand.address += static_cast<int64_t>(offset);
  }
  return slice;
}

std::vector<CoreStep> relayout_parts(const Machine& machine, const CoreStep& step) {
  std::vector<CoreStep> parts;
  parts.reserve(step.record->ring);
  for (const int64_t owner : step.operand[0].owners) {
    CoreStep part = step;
    auto number = static_cast<int64_t>(parts.size());
    for (int dim = step.record->rank - 1; dim >= 0; --dim) {
      if (!is_reduced(*step.record, dim)) continue;
      const int64_t place = number % step.extent[dim];
      part = slice_step(part, dim, place, place + 1);
      number /= step.extent[dim];
    }
    part.operand[0].address += owner * machine.lx_stride;
    parts.push_back(part);
  }
  return parts;
}

int storing_partners(std::span<const CoreStep> cores) {
  const int partners = partners_of(*cores[0].record);
  const bool is_shared = partners > 1 && cores[0].output().address == cores[1].output().address;
  return is_shared ? 1 : partners;
}

int slice_dimension(const CoreStep& step) {
  if (is_kind(*step.record, StepKind::Scatter)) return -1;  // where it writes, the index says
  const CoreOperand& output = step.output();
  const OperandRecord& record = *output.record;
  int widest = -1;
  int64_t covered =
      lanes_of(record) == Lanes::Element ? element_bytes(format_of(record)) : kStickBytes;
  if (output.tiles > 1) covered += std::abs(record.tile_stride) * (output.tiles - 1);
  for (int dim = 0; dim < step.record->rank; ++dim) {
    if (step.extent[dim] <= 1 || is_reduced(*step.record, dim)) continue;
    covered += std::abs(record.stride[dim]) * (step.extent[dim] - 1);
    if (widest < 0 || std::abs(record.stride[dim]) > std::abs(record.stride[widest])) widest = dim;
  }
  if (widest < 0) return -1;
  const int64_t stride = std::abs(record.stride[widest]);
  // What one iteration of the widest dimension covers must end before the next begins.
  return covered - stride * (step.extent[widest] - 1) <= stride ? widest : -1;
}

}  // namespace spyre
