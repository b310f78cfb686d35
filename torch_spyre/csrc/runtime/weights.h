// Weights of linear layers: laid out for the matrix units, once.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "card/driver.h"

namespace spyre {

// A matrix once more, in the layout that products want. It belongs to the storage of the matrix and
// is good as long as nothing was written there since.
struct ProductCopy {
  at::Tensor weight;
  int64_t writes = 0;  // those that it has seen
  QueueId queue = 0;
  Ticket made;
};

// Looks at the arguments of an eager operation before it is planned. A parameter that comes to a
// product transposed, as a linear layer's weight does, gets the layout that the product wants,
// instead of a copy per call; so does what a quantised product takes in 8 bits. An embedding's
// table keeps its own, since its rows must be addressable: as a weight (a tied head) it is replaced
// by a copy that is kept. Not where gradients are recorded (the backward wants the other layout),
// and in place not while a second thread uses the card.
void lay_out_weight(const std::string& operation, std::vector<c10::IValue>& arguments);

// The values of a matrix (out, in) with `out` in the sticks: the copy that is kept with its
// storage, made anew if something was written since. Throws torch.OutOfMemoryError.
at::Tensor copy_for_products(const at::Tensor& matrix);

}  // namespace spyre
