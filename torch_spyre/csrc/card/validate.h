// The rules of a card program, checked once, at load.
#pragma once

#include "program.h"

namespace spyre {

// Throws ProgramError unless every address that a core can form lies in what it belongs to, every
// step can be executed, and the program ends in reasonable time. Fills `lanes`, `barrier`, `work`
// and `lx_high_water`.
void validate(Program& program);

}  // namespace spyre
