// How steps that run together go through their iterations: in blocks whose words fit a host core's
// cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kernels.h"
#include "program.h"

namespace spyre {

using Strides = std::array<int64_t, kStepRank>;

// The most operands that are walked at the same time.
inline constexpr int kMaxWalks = 24;

// The iteration space after ordering and merging: dimensions with more than one iteration, the
// *run* last. Strides are left uninitialised beyond the walks that there are.
struct IterationSpace {
  int rank = 0;
  std::array<int64_t, kStepRank> extent{};
  std::array<Strides, kMaxWalks> stride;
};

// Orders the dimensions by the strides of the walk `leader`, the largest first, and merges those
// that nest for all walks, so that the run is long.
IterationSpace collapse(std::span<const int64_t> extent, std::span<const Strides> walks,
                        size_t leader);

// The fewest lanes of an iteration are those of a 32-bit format.
inline constexpr int kMaxSegments = kernels::kBlockElements * 4 / kStickBytes;

// A piece of a run: `count` iterations, and where they start in each walk. Without initial values:
// clearing a block of them would take longer than a small step.
struct Segment {
  int64_t count;
  std::array<int64_t, kMaxWalks> offset;
};

struct Block {
  int64_t iterations;
  int segments;
  std::array<Segment, kMaxSegments> segment;
};

// Splits the iteration space into blocks: all of `block_iterations`, but for the last.
class Blocks {
 public:
  Blocks(const IterationSpace& space, int walks, int64_t block_iterations)
      : space_(space), walks_(walks), block_iterations_(block_iterations) {
    for (int dim = 0; dim < space.rank; ++dim) left_ *= space.extent[dim];
    std::fill_n(offset_.begin(), walks, 0);
  }

  bool next(Block& block);

 private:
  void advance(int dim, int64_t count);
  uint64_t way(int walk, int dim, int64_t count) const {
    return static_cast<uint64_t>(space_.stride[walk][dim]) * static_cast<uint64_t>(count);
  }

  const IterationSpace& space_;
  const int walks_;
  const int64_t block_iterations_;
  int64_t left_ = 1;
  std::array<int64_t, kStepRank> index_{};
  std::array<uint64_t, kMaxWalks> offset_;
};

}  // namespace spyre
