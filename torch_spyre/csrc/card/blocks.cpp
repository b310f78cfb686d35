#include "blocks.h"

#include <cstdlib>

#include "walk.h"

namespace spyre {

IterationSpace collapse(std::span<const int64_t> extent, std::span<const Strides> walks,
                        size_t leader) {
  // Insertion by the leader's stride; equal ones keep their order.
  const Strides& by = walks[leader];
  std::array<int, kStepRank> order{};
  int rank = 0;
  for (int dim = 0; dim < static_cast<int>(extent.size()); ++dim) {
    if (extent[dim] <= 1) continue;
    int place = rank++;
    for (; place > 0 && std::abs(by[order[place - 1]]) < std::abs(by[dim]); --place) {
      order[place] = order[place - 1];
    }
    order[place] = dim;
  }
  IterationSpace space;
  for (int i = 0; i < rank; ++i) {
    const int dim = order[i];
    bool nests = space.rank > 0;
    for (size_t k = 0; k < walks.size() && nests; ++k) {
      // Iota's strides are not bounded by memory, so this must not overflow.
      const Wide inner = static_cast<Wide>(walks[k][dim]) * extent[dim];
      nests = space.stride[k][space.rank - 1] == inner;
    }
    const int place = nests ? space.rank - 1 : space.rank++;
    space.extent[place] = (nests ? space.extent[place] : 1) * extent[dim];
    for (size_t k = 0; k < walks.size(); ++k) space.stride[k][place] = walks[k][dim];
  }
  if (space.rank == 0) {
    space.rank = 1;
    space.extent[0] = 1;
    for (size_t k = 0; k < walks.size(); ++k) space.stride[k][0] = 0;
  }
  return space;
}

bool Blocks::next(Block& block) {
  block.iterations = 0;
  block.segments = 0;
  const int run = space_.rank - 1;
  while (left_ > 0 && block.iterations < block_iterations_ && block.segments < kMaxSegments) {
    Segment& segment = block.segment[block.segments++];
    segment.count =
        std::min(block_iterations_ - block.iterations, space_.extent[run] - index_[run]);
    for (int k = 0; k < walks_; ++k) segment.offset[k] = static_cast<int64_t>(offset_[k]);
    block.iterations += segment.count;
    left_ -= segment.count;
    advance(run, segment.count);
  }
  return block.segments > 0;
}

// Unsigned arithmetic, because Iota may wrap.
void Blocks::advance(int dim, int64_t count) {
  index_[dim] += count;
  for (int k = 0; k < walks_; ++k) offset_[k] += way(k, dim, count);
  while (dim > 0 && index_[dim] == space_.extent[dim]) {
    for (int k = 0; k < walks_; ++k) {
      offset_[k] += way(k, dim - 1, 1) - way(k, dim, space_.extent[dim]);
    }
    index_[dim] = 0;
    ++index_[--dim];
  }
}

}  // namespace spyre
