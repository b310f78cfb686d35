// Chains: Pointwise steps that run together, block by block.
#pragma once

#include <span>

#include "step.h"

namespace spyre {

// Runs steps that are bound to the same core and have iterations; all but the first are chained
// (see kChained). The bits are those of running one after the other, but for discarded results,
// which are stored only where it takes that to get there.
void run_chain(std::span<const CoreStep> steps);

// A copy of whole sticks, which keeps all bits, also those of a NaN that widening does away with.
bool is_stick_copy(const CoreStep& step);

// A dimension along which threads can share the chain, as `slice_dimension` of a single step.
int slice_dimension(std::span<const CoreStep> steps);

}  // namespace spyre
