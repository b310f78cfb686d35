// How an operand of a Pointwise step fills the words of a block, and how a result leaves them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blocks.h"
#include "kernels.h"
#include "step.h"

namespace spyre {

// How an operand fills the words of a run.
enum class Shape : uint8_t {
  Contiguous,  // sticks that follow each other
  Sticks,      // sticks at a stride, 0 for one that repeats
  FirstLane,   // lane 0 of sticks at a stride
  Counter,     // Iota
  Invariant,   // the same words in every iteration: filled once
};

// One operand of a step, or of several steps that walk it alike.
class Stream {
 public:
  Stream() = default;
  // `walk` is its place in the iteration space. In the tail its missing sticks read as zeros and
  // are not written.
  Stream(const CoreOperand& operand, int lanes, const IterationSpace& space, int walk,
         bool is_result, bool is_tail);

  Shape shape() const { return shape_; }
  // Consecutive blocks may find their words filled, so nothing else may use them in between.
  bool keeps_words() const {
    return shape_ == Shape::Invariant || shape_ == Shape::FirstLane ||
           (run_stride_ == 0 && shape_ != Shape::Counter);
  }

  // Can a direct operation (see kernels::DirectSticks) read the operand, or write the result?
  bool is_direct(bool is_result) const;
  kernels::DirectInput direct_input(const Segment& segment) const {
    return {direct_kind(), address_ + segment.offset[walk_], run_stride_};
  }
  std::byte* place(const Segment& segment) const { return address_ + segment.offset[walk_]; }
  int64_t run_stride() const { return run_stride_; }

  // An Invariant, for any number of iterations up to this one.
  void fill(kernels::Word* words, int64_t iterations) const;
  void load(const Block& block, kernels::Word* words);
  void store(const Block& block, const kernels::Word* words) const;
  // The block's sticks as they are, from one Vector to another of the same format.
  void copy_to(const Stream& target, const Block& block) const;

  // Makes the words what a load of the stored result would give: rounded, with zeros for what was
  // not stored.
  void round(kernels::Word* words, int64_t iterations) const;

 private:
  kernels::DirectInput::Kind direct_kind() const;
  void load_segment(int64_t offset, kernels::Word* words, int64_t count) const;
  void load_sticks(const std::byte* from, kernels::Word* words, int64_t count) const;
  void count_up(uint64_t offset, kernels::Word* words, int64_t count) const;
  void repeat(kernels::Word* words, int64_t iterations) const;

  Shape shape_ = Shape::Invariant;
  const OperandRecord* record_ = nullptr;
  std::byte* address_ = nullptr;
  uint64_t count_ = 0;      // Counter
  kernels::Word word_ = 0;  // Invariants that are not in memory
  int walk_ = 0;
  int lanes_ = 1;
  int tiles_ = 1;
  int present_ = 1;  // the first of the tiles
  int tile_lanes_ = 0;
  int64_t tile_stride_ = 0;
  int64_t run_stride_ = 0;  // from iteration to iteration of a run
  // What a repeated stick has filled already, so that consecutive blocks share it.
  int64_t filled_from_ = -1;
  int64_t filled_ = 0;
};

}  // namespace spyre
