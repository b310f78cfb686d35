// The rules of each kind of step, beside those that hold for all.
#pragma once

#include <span>
#include <vector>

#include "program.h"

namespace spyre {

// Roles, lanes, formats and strides as the kind of the step asks for. The operands have been
// checked one by one, the masks' indices too.
void check_kind_rules(const Program& program, size_t step);

// The fields of the step's masks that don't depend on its place in the tree.
void check_masks(const Program& program, size_t step);

// The masks' loop strides below loops of these counts.
void check_mask_loops(const Program& program, size_t step, std::span<const uint32_t> loops);

// A step with kChained: `chain` are the steps that it may run block by block with, the nearest
// last; empty if the node before it is no Pointwise step.
void check_chained(const Program& program, size_t step, std::span<const uint32_t> chain,
                   std::span<const uint32_t> loops);

}  // namespace spyre
