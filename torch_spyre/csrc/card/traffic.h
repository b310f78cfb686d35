// How many different sticks a step touches.
#pragma once

#include <cstdint>
#include <span>

#include "program.h"

namespace spyre {

// Sticks that the cores of a step touch through operands in the same memory in one visit, at these
// indices of the enclosing loops. A stick that several cores or operands touch, or one core several
// times, counts once.
//
// Exact for walks of whole sticks and for others that take at most some thousand separate pieces;
// beyond that, pieces of different cores or iterations that share a stick count once each.
int64_t distinct_sticks(const Program& program, const StepRecord& step,
                        std::span<const OperandRecord* const> operands, int lanes,
                        std::span<const int> cores, std::span<const uint32_t> loops);

}  // namespace spyre
