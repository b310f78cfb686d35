// What a Matmul step multiplies, whichever core it was given to.
//
// How the compiler cut the work over the cores says nothing about how the host does it best: 32
// cores may hold two rows each of the same product. So the cores' work is put together again:
// rows that are multiplied by the same sticks of B, wherever they are stored, and sticks of B that
// the same rows are multiplied by, form one *problem*.
//
// The partners of a ring count as one core whose k has a part for each of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "step.h"

namespace spyre {

// The elements of k in order, a stick of A (and as many rows of B) at a time. An iteration has
// several sticks of A where that has fewer elements per stick than B.
struct DepthStick {
  int64_t a, b;
  int count;  // elements that count
};
// Part after part, one for each partner of a ring.
struct Depth {
  std::vector<DepthStick> sticks;
  std::vector<size_t> ends;  // of the parts

  size_t longest_part() const {
    size_t longest = 0, first = 0;
    for (const size_t end : ends) {
      longest = std::max(longest, end - first);
      first = end;
    }
    return longest;
  }
};

// A stick of columns, and where its results go: `results` names a list of row addresses, the first
// of as many as there are copies.
struct Panel {
  const std::byte* b;
  int64_t c;
  int results;
  int tiles;  // sticks of C that are present
};

struct Problem {
  int depth = 0;
  std::vector<const std::byte*> rows;            // of A
  std::vector<std::vector<std::byte*>> results;  // rows of C
  std::vector<Panel> panels;
};

struct Products {
  std::vector<Problem> problems;
  std::vector<Depth> depths;
  int copies = 1;  // of the results
};

// The problems of a step, from what its cores are to do.
Products products_of(std::span<const CoreStep> cores);

// Elements of k in a stick of A.
int k_lanes_of(const CoreStep& step);

}  // namespace spyre
