// Steps of one core that run together, slice by slice, so that what a slice touches stays in the
// host core's cache from one step to the next.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "step.h"

namespace spyre {

// A step with those that are chained to it, bound to a core; they have iterations.
using Unit = std::vector<CoreStep>;

// Runs Pointwise and Reduction units of one core, from the first on, as many as can be cut into
// slices of which none touches what a step wrote, or will write, in another. Returns how many it
// ran: none, if fewer than two can be, or if they are too small to gain by it. The bits are those
// of running one unit after the other. `run` runs a unit, or a slice of one.
size_t run_in_slices(std::span<const Unit> units, const std::function<void(const Unit&)>& run);

}  // namespace spyre
