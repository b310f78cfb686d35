// Operations of one operand in SEN169 as tables: there are only 65,536 operands. A table is what
// widening, computing and rounding give, so its bits are theirs, and on the host it takes a
// fraction of the time of a function that is computed in double.
#pragma once

#include "kernels.h"
#include "opcodes.h"

namespace spyre {

// The code of the result for each code of the operand; null where computing is as fast. The first
// call for an opcode makes its table.
const uint16_t* results_of(Opcode opcode);

// The operation with these results on sticks of SEN169, or on words that such a stick could hold.
void look_up(const uint16_t* results, const kernels::DirectSticks& sticks);

}  // namespace spyre
