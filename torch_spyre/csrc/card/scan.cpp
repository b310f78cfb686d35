// Scan steps: running sums, products, extrema along one dimension.
//
// A block of elements is widened, replaced in place by its running results, and narrowed. What the
// lanes have reached is carried from block to block; an Element step is one of a single lane.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "combine.h"
#include "rows.h"
#include "step.h"

namespace spyre {
namespace {

using kernels::kBlockElements;

using Lanes128 = std::array<Word, kStickBytes>;

// What the lanes have reached.
struct Reached {
  Lanes128 value;
  Lanes128 position;  // of the extremum
  int64_t count = 0;  // elements so far
};

// Does an element take the place of the extremum so far? Of equal ones the later, and NaN always.
template <bool is_largest>
struct Extremum {
  static bool replaces(Word x, Word reached) {
    const auto a = std::bit_cast<float>(x), b = std::bit_cast<float>(reached);
    return std::isnan(a) || (!std::isnan(b) && (is_largest ? a >= b : a <= b));
  }
};
template <bool is_largest>
struct ExtremumInt {
  static bool replaces(Word x, Word reached) {
    const auto a = static_cast<int32_t>(x), b = static_cast<int32_t>(reached);
    return is_largest ? a >= b : a <= b;
  }
};

// Replaces `count` elements of each lane by the running results; those of one lane are `lanes`
// words apart.
using Advance = void (*)(Word* words, int64_t count, int lanes, Reached& reached);

template <typename Op>
void accumulate(Word* words, int64_t count, int lanes, Reached& reached) {
  if (reached.count == 0) reached.value.fill(Op::kStart);
  if (lanes == 1) {
    Word value = reached.value[0];
    for (int64_t i = 0; i < count; ++i) {
      value = Op::next(value, words[i]);
      words[i] = Op::finish(value);
    }
    reached.value[0] = value;
  } else {
    for (int64_t i = 0; i < count; ++i, words += lanes) {
      for (int lane = 0; lane < lanes; ++lane) {
        reached.value[lane] = Op::next(reached.value[lane], words[lane]);
        words[lane] = Op::finish(reached.value[lane]);
      }
    }
  }
  reached.count += count;
}

template <typename Op>
void find(Word* words, int64_t count, int lanes, Reached& reached) {
  for (int64_t i = 0; i < count; ++i, words += lanes, ++reached.count) {
    for (int lane = 0; lane < lanes; ++lane) {
      if (reached.count == 0 || Op::replaces(words[lane], reached.value[lane])) {
        reached.value[lane] = words[lane];
        reached.position[lane] = static_cast<Word>(reached.count);
      }
      words[lane] = reached.position[lane];
    }
  }
}

// log(e^a + e^x) = high + log1p(e^(low - high)), with the card's own exp and log1p. Two infinities
// of one sign are their own result.
void add_exponentials(Word* words, int64_t count, int lanes, Reached& reached) {
  constexpr auto kStart = -std::numeric_limits<float>::infinity();
  if (reached.count == 0) reached.value.fill(std::bit_cast<Word>(kStart));
  const auto& pointwise = kernels::table().pointwise;
  const kernels::Pointwise exp = pointwise[static_cast<size_t>(Opcode::exp)];
  const kernels::Pointwise log1p = pointwise[static_cast<size_t>(Opcode::log1p)];
  Lanes128 high, rest;
  const Word* const in = rest.data();
  for (int64_t i = 0; i < count; ++i, words += lanes) {
    for (int lane = 0; lane < lanes; ++lane) {
      const auto a = std::bit_cast<float>(reached.value[lane]);
      const auto x = std::bit_cast<float>(words[lane]);
      const bool is_above = a > x || std::isnan(a);
      const float larger = is_above ? a : x;
      const float smaller = is_above ? x : a;
      const bool is_same_infinity = larger == smaller && std::isinf(larger);
      high[lane] = std::bit_cast<Word>(larger);
      rest[lane] = std::bit_cast<Word>(is_same_infinity ? kStart : smaller - larger);
    }
    exp(&in, rest.data(), lanes);
    log1p(&in, rest.data(), lanes);
    for (int lane = 0; lane < lanes; ++lane) {
      words[lane] = reached.value[lane] = one_nan(Sum::next(high[lane], rest[lane]));
    }
  }
  reached.count += count;
}

Advance advance_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::cumsum:
      return accumulate<Sum>;
    case Opcode::cumprod:
      return accumulate<Product>;
    case Opcode::cumsum_int:
      return accumulate<SumInt>;
    case Opcode::cumprod_int:
      return accumulate<ProductInt>;
    case Opcode::cummax_index:
      return find<Extremum<true>>;
    case Opcode::cummin_index:
      return find<Extremum<false>>;
    case Opcode::cummax_index_int:
      return find<ExtremumInt<true>>;
    case Opcode::cummin_index_int:
      return find<ExtremumInt<false>>;
    default:
      return add_exponentials;
  }
}

class ScanRun {
 public:
  explicit ScanRun(const CoreStep& step)
      : step_(step),
        from_(*step.operand[0].record),
        to_(*step.operand[1].record),
        advance_(advance_of(static_cast<Opcode>(step.record->opcode))),
        load_(kernels::table().load[from_.format]),
        store_(kernels::table().store[to_.format]) {}

  void scan(const Row& row) {
    const bool is_element = lanes_of(from_) == Lanes::Element;
    const int64_t block = kBlockElements / step_.lanes;
    reached_.count = 0;
    for (int64_t first = 0; first < row.length; first += block) {
      const int64_t count = std::min(block, row.length - first);
      const std::byte* from = row.from + first * row.from_stride;
      std::byte* to = row.to + first * row.to_stride;
      is_element ? load_elements(from, row, count) : load_sticks(from, row, count);
      advance_(words_.data(), count, step_.lanes, reached_);
      is_element ? store_elements(to, row, count) : store_sticks(to, row, count);
    }
  }

 private:
  void load_elements(const std::byte* from, const Row& row, int64_t count) {
    const int bytes = element_bytes(format_of(from_));
    kernels::table().move_tile(bytes, from, 0, row.from_stride, bytes_.data(), 0, bytes, 1, count);
    load_(bytes_.data(), words_.data(), count);
  }
  void store_elements(std::byte* to, const Row& row, int64_t count) {
    const int bytes = element_bytes(format_of(to_));
    store_(words_.data(), bytes_.data(), count);
    kernels::table().move_tile(bytes, bytes_.data(), 0, bytes, to, 0, row.to_stride, 1, count);
  }

  static int present_tiles(const CoreOperand& operand, const Row& row) {
    const int tail = operand.record->tail_tiles;
    return row.is_tail && tail != 0 ? tail : operand.tiles;
  }

  // Missing sticks read as zeros and are not written.
  void load_sticks(const std::byte* from, const Row& row, int64_t count) {
    const CoreOperand& operand = step_.operand[0];
    const int present = present_tiles(operand, row);
    const int lanes = step_.lanes / operand.tiles;
    for (int64_t i = 0; i < count; ++i) {
      Word* const words = words_.data() + i * step_.lanes;
      for (int tile = 0; tile < present; ++tile) {
        load_(from + i * row.from_stride + tile * from_.tile_stride, words + tile * lanes, lanes);
      }
      std::fill(words + present * lanes, words + step_.lanes, Word{0});
    }
  }
  void store_sticks(std::byte* to, const Row& row, int64_t count) {
    const CoreOperand& operand = step_.operand[1];
    const int present = present_tiles(operand, row);
    const int lanes = step_.lanes / operand.tiles;
    for (int64_t i = 0; i < count; ++i) {
      const Word* const words = words_.data() + i * step_.lanes;
      for (int tile = 0; tile < present; ++tile) {
        store_(words + tile * lanes, to + i * row.to_stride + tile * to_.tile_stride, lanes);
      }
    }
  }

  const CoreStep& step_;
  const OperandRecord& from_;
  const OperandRecord& to_;
  const Advance advance_;
  const kernels::Load load_;
  const kernels::Store store_;
  Reached reached_;
  alignas(64) std::array<Word, kBlockElements> words_;
  alignas(64) std::array<std::byte, kBlockElements * sizeof(Word)> bytes_;
};

}  // namespace

void run_scan(const CoreStep& step) {
  ScanRun run(step);
  for_each_row(step, [&](const Row& row) { run.scan(row); });
}

}  // namespace spyre
