// Weights of linear layers in eager mode: laid out for the matrix units, once.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace spyre {

// Looks at the arguments of an operation before it is planned. A parameter that comes to a product
// transposed, as a linear layer's weight does, gets the layout that the product wants, instead of a
// copy per call; so does what a quantised product takes in 8 bits. Not where gradients are recorded
// (the backward wants the other layout), not for an embedding's table (its rows must be
// addressable), and not once a second thread has used the card.
void lay_out_weight(const std::string& operation, const std::vector<c10::IValue>& arguments);

}  // namespace spyre
