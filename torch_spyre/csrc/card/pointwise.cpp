// Pointwise steps: sticks in, sticks out.
//
// The dimensions are ordered and merged so that the innermost *run* is as long as possible. Blocks
// of iterations, gathered from one or several runs, are widened into arrays of words that stay in
// the host core's cache, computed on, and narrowed into the result.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "step.h"
#include "walk.h"

namespace spyre {
namespace {

using kernels::kBlockElements;
using kernels::Word;

// The fewest lanes of an iteration are those of a 32-bit format.
constexpr int kMaxSegments = kBlockElements * 4 / kStickBytes;

// How an operand fills the words of a run.
enum class Shape : uint8_t {
  Contiguous,  // sticks that follow each other
  Sticks,      // sticks at a stride, 0 for one that repeats
  FirstLane,   // lane 0 of sticks at a stride
  Counter,     // Iota
  Invariant,   // the same words in every iteration: filled once
};

struct Stream {
  Shape shape = Shape::Invariant;
  kernels::Load load = nullptr;
  kernels::Store store = nullptr;
  std::byte* address = nullptr;
  uint64_t count = 0;
  int tiles = 1;
  int present = 1;  // the first of the tiles; the others read as zeros and are not written
  int tile_lanes = 0;
  int64_t tile_stride = 0;
  int64_t run_stride = 0;  // from iteration to iteration of a run
  // What a repeated stick has filled already, so that consecutive blocks share it.
  int64_t filled_from = -1;
  int64_t filled = 0;
};

// A piece of a run: `count` iterations, and where they start in each operand. Without initial
// values: clearing a block of them would take longer than a small step.
struct Segment {
  int64_t count;
  std::array<int64_t, kMaxOperands> offset;
};

struct Block {
  int64_t iterations;
  int segments;
  std::array<Segment, kMaxSegments> segment;
};

// The iteration space after ordering and merging: dimensions with more than one iteration, the run
// last.
struct IterationSpace {
  int rank = 0;
  std::array<int64_t, kStepRank> extent{};
  std::array<std::array<int64_t, kStepRank>, kMaxOperands> stride{};
};

int64_t stride_of(const CoreOperand& operand, int dim) {
  const auto space = static_cast<Space>(operand.record->space);
  return space == Space::Scalar || space == Space::Constant ? 0 : operand.record->stride[dim];
}

IterationSpace collapse(const CoreStep& step) {
  // Insertion by the output's stride, the largest first; equal ones keep their order.
  const OperandRecord& output = *step.output().record;
  std::array<int, kStepRank> order{};
  int rank = 0;
  for (int dim = 0; dim < step.record->rank; ++dim) {
    if (step.extent[dim] <= 1) continue;
    int place = rank++;
    for (; place > 0 && std::abs(output.stride[order[place - 1]]) < std::abs(output.stride[dim]);
         --place) {
      order[place] = order[place - 1];
    }
    order[place] = dim;
  }
  IterationSpace space;
  for (int i = 0; i < rank; ++i) {
    const int dim = order[i];
    bool nests = space.rank > 0;
    for (int k = 0; k < step.operands() && nests; ++k) {
      // Iota's strides are not bounded by memory, so this must not overflow.
      const Wide inner = static_cast<Wide>(stride_of(step.operand[k], dim)) * step.extent[dim];
      nests = space.stride[k][space.rank - 1] == inner;
    }
    const int place = nests ? space.rank - 1 : space.rank++;
    space.extent[place] = (nests ? space.extent[place] : 1) * step.extent[dim];
    for (int k = 0; k < step.operands(); ++k) {
      space.stride[k][place] = stride_of(step.operand[k], dim);
    }
  }
  if (space.rank == 0) {
    space.rank = 1;
    space.extent[0] = 1;
  }
  return space;
}

// Splits the iteration space into blocks.
class Blocks {
 public:
  Blocks(const IterationSpace& space, int operands, int64_t block_iterations)
      : space_(space), operands_(operands), block_iterations_(block_iterations) {
    for (int dim = 0; dim < space.rank; ++dim) left_ *= space.extent[dim];
  }

  bool next(Block& block) {
    block.iterations = 0;
    block.segments = 0;
    const int run = space_.rank - 1;
    while (left_ > 0 && block.iterations < block_iterations_ && block.segments < kMaxSegments) {
      Segment& segment = block.segment[block.segments++];
      segment.count =
          std::min(block_iterations_ - block.iterations, space_.extent[run] - index_[run]);
      for (int k = 0; k < operands_; ++k) segment.offset[k] = static_cast<int64_t>(offset_[k]);
      block.iterations += segment.count;
      left_ -= segment.count;
      advance(run, segment.count);
    }
    return block.segments > 0;
  }

 private:
  // Unsigned arithmetic, because Iota may wrap.
  void advance(int dim, int64_t count) {
    index_[dim] += count;
    for (int k = 0; k < operands_; ++k) offset_[k] += way(k, dim, count);
    while (dim > 0 && index_[dim] == space_.extent[dim]) {
      for (int k = 0; k < operands_; ++k) {
        offset_[k] += way(k, dim - 1, 1) - way(k, dim, space_.extent[dim]);
      }
      index_[dim] = 0;
      ++index_[--dim];
    }
  }
  uint64_t way(int operand, int dim, int64_t count) const {
    return static_cast<uint64_t>(space_.stride[operand][dim]) * static_cast<uint64_t>(count);
  }

  const IterationSpace& space_;
  const int operands_;
  const int64_t block_iterations_;
  int64_t left_ = 1;
  std::array<int64_t, kStepRank> index_{};
  std::array<uint64_t, kMaxOperands> offset_{};
};

// The step on one core, or on a slice of one, without a tail or nothing but the tail.
class PointwiseRun {
 public:
  PointwiseRun(const CoreStep& step, bool is_tail)
      : step_(step), inputs_(step.record->inputs), space_(collapse(step)) {
    for (int k = 0; k < step.operands(); ++k) stream_[k] = make_stream(k, is_tail);
  }

  void run() {
    if (is_stick_copy()) {
      copy_sticks();
    } else {
      compute();
    }
  }

 private:
  Stream make_stream(int index, bool is_tail) const {
    const CoreOperand& operand = step_.operand[index];
    const OperandRecord& record = *operand.record;
    const kernels::Table& table = kernels::table();
    Stream stream;
    stream.load = table.load[record.format];
    stream.store = table.store[record.format];
    stream.address = operand.address;
    stream.count = operand.count;
    stream.tiles = operand.tiles;
    stream.present = is_tail && record.tail_tiles != 0 ? record.tail_tiles : operand.tiles;
    stream.tile_lanes = step_.lanes / operand.tiles;
    stream.tile_stride = operand.tiles > 1 || !is_in_memory(record) ? record.tile_stride : 0;
    stream.run_stride = space_.stride[index][space_.rank - 1];
    const auto space = static_cast<Space>(record.space);
    const bool repeats =
        std::all_of(space_.stride[index].begin(), space_.stride[index].begin() + space_.rank,
                    [](int64_t stride) { return stride == 0; });
    if (space == Space::Iota) {
      stream.shape = Shape::Counter;
    } else if (index < inputs_ && repeats) {
      stream.shape = Shape::Invariant;
    } else if (lanes_of(record) == Lanes::First) {
      stream.shape = Shape::FirstLane;
    } else {
      const bool tiles_follow = stream.present == stream.tiles &&
                                (stream.tiles == 1 || stream.tile_stride == kStickBytes);
      const bool is_single = space_.rank == 1 && space_.extent[0] == 1;
      const bool sticks_follow = is_single || stream.run_stride == stream.tiles * kStickBytes;
      stream.shape = tiles_follow && sticks_follow ? Shape::Contiguous : Shape::Sticks;
    }
    return stream;
  }

  // ---- Copies that keep the format: whole sticks, no widening -----------------------------------

  bool is_identity() const {
    return step_.record->opcode == static_cast<uint16_t>(Opcode::identity) ||
           step_.record->opcode == static_cast<uint16_t>(Opcode::identity_int);
  }

  bool is_stick_copy() const {
    const OperandRecord& from = *step_.operand[0].record;
    return is_identity() && is_in_memory(from) && lanes_of(from) == Lanes::Vector &&
           from.format == step_.output().record->format;
  }

  void copy_sticks() {
    const Stream& from = stream_[0];
    const Stream& to = stream_[1];
    Blocks blocks(space_, 2, std::numeric_limits<int64_t>::max());
    for (Block block; blocks.next(block);) {
      for (int s = 0; s < block.segments; ++s) {
        const Segment& segment = block.segment[s];
        const std::byte* source = from.address + segment.offset[0];
        std::byte* target = to.address + segment.offset[1];
        if (from.shape == Shape::Contiguous && to.shape == Shape::Contiguous) {
          std::memmove(target, source, segment.count * kStickBytes);
          continue;
        }
        for (int64_t i = 0; i < segment.count; ++i) {
          std::memmove(target + i * to.run_stride, source + i * from.run_stride, kStickBytes);
        }
      }
    }
  }

  // ---- Everything else: widen, compute, narrow --------------------------------------------------

  void compute() {
    const int64_t block_iterations =
        std::min<int64_t>(kBlockElements / step_.lanes, step_.iterations());
    bool is_constant = true;  // nothing varies: compute one block, store it everywhere
    for (int k = 0; k < inputs_; ++k) {
      if (stream_[k].shape == Shape::Invariant) {
        fill_invariant(k, block_iterations);
      } else {
        is_constant = false;
      }
    }
    const Word* result = nullptr;
    if (is_constant) result = apply(block_iterations);
    Blocks blocks(space_, step_.operands(), block_iterations);
    for (Block block; blocks.next(block);) {
      if (!is_constant) {
        for (int k = 0; k < inputs_; ++k) load(k, block);
        result = apply(block.iterations);
      }
      store(block, result);
    }
  }

  const Word* apply(int64_t iterations) {
    if (is_identity()) return words_[0].data();
    std::array<const Word*, kMaxInputs> in{};
    for (int k = 0; k < inputs_; ++k) in[k] = words_[k].data();
    kernels::table().pointwise[step_.record->opcode](in.data(), words_[inputs_].data(),
                                                     iterations * step_.lanes);
    return words_[inputs_].data();
  }

  void fill_invariant(int index, int64_t iterations) {
    const CoreOperand& operand = step_.operand[index];
    Word* words = words_[index].data();
    if (!is_in_memory(*operand.record)) {
      std::fill_n(words, iterations * step_.lanes, operand.word);
    } else if (lanes_of(*operand.record) == Lanes::First) {
      load_first_lanes(stream_[index], operand.address, words, iterations);
    } else {
      load_sticks(stream_[index], operand.address, words, 1);
      repeat(words, iterations);
    }
  }

  void load(int index, const Block& block) {
    Stream& stream = stream_[index];
    if (stream.shape == Shape::Invariant) return;
    Word* words = words_[index].data();
    const bool repeats =
        stream.run_stride == 0 && block.segments == 1 && stream.shape != Shape::Counter;
    if (repeats) {
      const Segment& segment = block.segment[0];
      if (stream.filled_from == segment.offset[index] && stream.filled >= segment.count) return;
      stream.filled_from = segment.offset[index];
      stream.filled = segment.count;
    } else {
      stream.filled_from = -1;
    }
    for (int s = 0; s < block.segments; ++s) {
      const Segment& segment = block.segment[s];
      load_segment(stream, segment.offset[index], words, segment.count);
      words += segment.count * step_.lanes;
    }
  }

  void load_segment(const Stream& stream, int64_t offset, Word* words, int64_t count) const {
    switch (stream.shape) {
      case Shape::Contiguous:
        stream.load(stream.address + offset, words, count * step_.lanes);
        break;
      case Shape::Sticks:
        if (stream.run_stride == 0) {
          load_sticks(stream, stream.address + offset, words, 1);
          repeat(words, count);
        } else {
          load_sticks(stream, stream.address + offset, words, count);
        }
        break;
      case Shape::FirstLane:
        load_first_lanes(stream, stream.address + offset, words, count);
        break;
      case Shape::Counter:
        count_up(stream, static_cast<uint64_t>(offset), words, count);
        break;
      case Shape::Invariant:
        break;
    }
  }

  void load_sticks(const Stream& stream, const std::byte* from, Word* words, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      for (int tile = 0; tile < stream.present; ++tile) {
        stream.load(from + i * stream.run_stride + tile * stream.tile_stride,
                    words + tile * stream.tile_lanes, stream.tile_lanes);
      }
      std::fill(words + stream.present * stream.tile_lanes, words + step_.lanes, Word{0});
      words += step_.lanes;
    }
  }

  void load_first_lanes(const Stream& stream, const std::byte* from, Word* words,
                        int64_t count) const {
    Word value = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (i == 0 || stream.run_stride != 0) stream.load(from + i * stream.run_stride, &value, 1);
      std::fill_n(words, step_.lanes, value);
      words += step_.lanes;
    }
  }

  void count_up(const Stream& stream, uint64_t offset, Word* words, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const auto first =
          static_cast<Word>(stream.count + offset + static_cast<uint64_t>(stream.run_stride) * i);
      const auto step = static_cast<Word>(stream.tile_stride);
      for (int lane = 0; lane < step_.lanes; ++lane) words[lane] = first + step * lane;
      words += step_.lanes;
    }
  }

  // The first iteration's words, over again.
  void repeat(Word* words, int64_t iterations) const {
    for (int64_t i = 1; i < iterations; ++i) {
      std::copy_n(words, step_.lanes, words + i * step_.lanes);
    }
  }

  void store(const Block& block, const Word* words) const {
    const Stream& to = stream_[inputs_];
    for (int s = 0; s < block.segments; ++s) {
      const Segment& segment = block.segment[s];
      std::byte* target = to.address + segment.offset[inputs_];
      if (to.shape == Shape::Contiguous) {
        to.store(words, target, segment.count * step_.lanes);
        words += segment.count * step_.lanes;
        continue;
      }
      for (int64_t i = 0; i < segment.count; ++i) {
        for (int tile = 0; tile < to.present; ++tile) {
          to.store(words + tile * to.tile_lanes, target + i * to.run_stride + tile * to.tile_stride,
                   to.tile_lanes);
        }
        words += step_.lanes;
      }
    }
  }

  const CoreStep& step_;
  const int inputs_;
  const IterationSpace space_;
  std::array<Stream, kMaxOperands> stream_{};
  // Inputs, then the result. Left uninitialised: every word is filled before it is read.
  alignas(64) std::array<std::array<Word, kBlockElements>, kMaxOperands> words_;
};

}  // namespace

void run_pointwise(const CoreStep& step) {
  if (!step.is_tail) {
    PointwiseRun(step, false).run();
    return;
  }
  const int dim = step.record->stick_dim;
  const int64_t last = step.extent[dim] - 1;
  if (last > 0) PointwiseRun(slice_step(step, dim, 0, last), false).run();
  PointwiseRun(slice_step(step, dim, last, last + 1), true).run();
}

}  // namespace spyre
