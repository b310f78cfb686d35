#include "streams.h"

#include <algorithm>
#include <cstring>

#include "walk.h"

namespace spyre {

using kernels::Word;

Stream::Stream(const CoreOperand& operand, int lanes, const IterationSpace& space, int walk,
               bool is_result, bool is_tail)
    : record_(operand.record),
      address_(operand.address),
      count_(operand.count),
      word_(operand.word),
      walk_(walk),
      lanes_(lanes),
      tiles_(operand.tiles),
      present_(is_tail && record_->tail_tiles != 0 ? record_->tail_tiles : operand.tiles),
      tile_lanes_(lanes / operand.tiles),
      tile_stride_(operand.tiles > 1 || !is_in_memory(*record_) ? record_->tile_stride : 0),
      run_stride_(space.stride[walk][space.rank - 1]) {
  const Strides& strides = space.stride[walk];
  const bool repeats = std::all_of(strides.begin(), strides.begin() + space.rank,
                                   [](int64_t stride) { return stride == 0; });
  if (record_->space == static_cast<uint8_t>(Space::Iota)) {
    shape_ = Shape::Counter;
  } else if (!is_result && repeats) {
    shape_ = Shape::Invariant;
  } else if (lanes_of(*record_) == Lanes::First) {
    shape_ = Shape::FirstLane;
  } else {
    const bool tiles_follow = present_ == tiles_ && (tiles_ == 1 || tile_stride_ == kStickBytes);
    const bool is_single = space.rank == 1 && space.extent[0] == 1;
    const bool sticks_follow = is_single || run_stride_ == tiles_ * kStickBytes;
    shape_ = tiles_follow && sticks_follow ? Shape::Contiguous : Shape::Sticks;
  }
}

bool Stream::is_direct(bool is_result) const {
  const DataFormat format = format_of(*record_);
  if (shape_ == Shape::FirstLane) {
    return !is_result && (format == DataFormat::SEN169_FP16 || format == DataFormat::IEEE_FP32);
  }
  const bool is_stick = shape_ == Shape::Contiguous || shape_ == Shape::Sticks;
  return is_stick && format == DataFormat::SEN169_FP16 && tiles_ == 1;
}

kernels::DirectInput::Kind Stream::direct_kind() const {
  using Kind = kernels::DirectInput::Kind;
  if (shape_ != Shape::FirstLane) return Kind::Stick;
  return format_of(*record_) == DataFormat::IEEE_FP32 ? Kind::FirstWord : Kind::FirstHalf;
}

void Stream::fill(Word* words, int64_t iterations) const {
  if (!is_in_memory(*record_)) {
    std::fill_n(words, iterations * lanes_, word_);
  } else if (lanes_of(*record_) == Lanes::First) {
    kernels::table().load_first[record_->format](address_, 0, iterations, words, lanes_);
  } else {
    load_sticks(address_, words, 1);
    repeat(words, iterations);
  }
}

void Stream::load(const Block& block, Word* words) {
  if (shape_ == Shape::Invariant) return;
  if (keeps_words() && block.segments == 1) {
    const Segment& segment = block.segment[0];
    if (filled_from_ == segment.offset[walk_] && filled_ >= segment.count) return;
    filled_from_ = segment.offset[walk_];
    filled_ = segment.count;
  } else {
    filled_from_ = -1;
  }
  for (int s = 0; s < block.segments; ++s) {
    const Segment& segment = block.segment[s];
    load_segment(segment.offset[walk_], words, segment.count);
    words += segment.count * lanes_;
  }
}

void Stream::load_segment(int64_t offset, Word* words, int64_t count) const {
  switch (shape_) {
    case Shape::Contiguous:
      kernels::table().load[record_->format](address_ + offset, words, count * lanes_);
      break;
    case Shape::Sticks:
      if (run_stride_ == 0) {
        load_sticks(address_ + offset, words, 1);
        repeat(words, count);
      } else {
        load_sticks(address_ + offset, words, count);
      }
      break;
    case Shape::FirstLane:
      kernels::table().load_first[record_->format](address_ + offset, run_stride_, count, words,
                                                   lanes_);
      break;
    case Shape::Counter:
      count_up(static_cast<uint64_t>(offset), words, count);
      break;
    case Shape::Invariant:
      break;
  }
}

void Stream::load_sticks(const std::byte* from, Word* words, int64_t count) const {
  const kernels::Load load = kernels::table().load[record_->format];
  for (int64_t i = 0; i < count; ++i) {
    for (int tile = 0; tile < present_; ++tile) {
      load(from + i * run_stride_ + tile * tile_stride_, words + tile * tile_lanes_, tile_lanes_);
    }
    std::fill(words + present_ * tile_lanes_, words + lanes_, Word{0});
    words += lanes_;
  }
}

void Stream::count_up(uint64_t offset, Word* words, int64_t count) const {
  for (int64_t i = 0; i < count; ++i) {
    const auto first = static_cast<Word>(count_ + offset + static_cast<uint64_t>(run_stride_) * i);
    const auto step = static_cast<Word>(tile_stride_);
    for (int lane = 0; lane < lanes_; ++lane) words[lane] = first + step * lane;
    words += lanes_;
  }
}

// The first iteration's words, over again.
void Stream::repeat(Word* words, int64_t iterations) const {
  for (int64_t i = 1; i < iterations; ++i) std::copy_n(words, lanes_, words + i * lanes_);
}

void Stream::store(const Block& block, const Word* words) const {
  const kernels::Store store = kernels::table().store[record_->format];
  for (int s = 0; s < block.segments; ++s) {
    const Segment& segment = block.segment[s];
    std::byte* target = address_ + segment.offset[walk_];
    if (shape_ == Shape::Contiguous) {
      store(words, target, segment.count * lanes_);
      words += segment.count * lanes_;
      continue;
    }
    for (int64_t i = 0; i < segment.count; ++i) {
      for (int tile = 0; tile < present_; ++tile) {
        store(words + tile * tile_lanes_, target + i * run_stride_ + tile * tile_stride_,
              tile_lanes_);
      }
      words += lanes_;
    }
  }
}

void Stream::copy_to(const Stream& target, const Block& block) const {
  for (int s = 0; s < block.segments; ++s) {
    const Segment& segment = block.segment[s];
    const std::byte* from = address_ + segment.offset[walk_];
    std::byte* to = target.address_ + segment.offset[target.walk_];
    if (shape_ == Shape::Contiguous && target.shape_ == Shape::Contiguous) {
      std::memmove(to, from, segment.count * kStickBytes);
      continue;
    }
    for (int64_t i = 0; i < segment.count; ++i) {
      std::memmove(to + i * target.run_stride_, from + i * run_stride_, kStickBytes);
    }
  }
}

void Stream::round(Word* words, int64_t iterations) const {
  const kernels::Round round = kernels::table().round[record_->format];
  if (round != nullptr) round(words, iterations * lanes_);
  if (present_ == tiles_) return;
  for (int64_t i = 0; i < iterations; ++i, words += lanes_) {
    std::fill(words + present_ * tile_lanes_, words + lanes_, Word{0});
  }
}

}  // namespace spyre
