// The rows of an Argsort or Scan: all elements along the one dimension along which the step goes.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "step.h"
#include "walk.h"

namespace spyre {

struct Row {
  const std::byte* from;
  std::byte* to;
  int64_t length;
  int64_t from_stride, to_stride;
  bool is_tail;  // Vectors: the iteration of the stick dimension that lacks tiles
};

inline int row_dimension(const StepRecord& step) { return std::countr_zero(step.reduced); }

namespace rows_detail {

template <typename Visit>
void visit_rows(const CoreStep& step, int dim, Row row, Visit& visit) {
  if (dim == step.record->rank) return visit(row);
  if (is_reduced(*step.record, dim)) return visit_rows(step, dim + 1, row, visit);
  const bool may_be_tail = step.is_tail && dim == step.record->stick_dim;
  for (int64_t i = 0; i < step.extent[dim]; ++i) {
    row.is_tail = may_be_tail ? i == step.extent[dim] - 1 : row.is_tail;
    visit_rows(step, dim + 1, row, visit);
    if (i + 1 == step.extent[dim]) break;  // a stride that leads nowhere was not checked
    row.from += step.operand[0].record->stride[dim];
    row.to += step.operand[1].record->stride[dim];
  }
}

}  // namespace rows_detail

// Calls `visit(row)` for each row of a step with one input and one output.
template <typename Visit>
void for_each_row(const CoreStep& step, Visit visit) {
  const int dim = row_dimension(*step.record);
  const Row first{step.operand[0].address,
                  step.operand[1].address,
                  step.extent[dim],
                  step.operand[0].record->stride[dim],
                  step.operand[1].record->stride[dim],
                  false};
  rows_detail::visit_rows(step, 0, first, visit);
}

}  // namespace spyre
