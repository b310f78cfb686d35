// Scatter steps: rows of a table, chosen by an index tensor, are written or accumulated into.
//
// One iteration after the other, in the order of the step's dimensions. Along the innermost one
// indices and elements of the source are read a block at a time, the indices checked before the
// first of the block is used.
#include <algorithm>
#include <array>
#include <cstring>

#include "combine.h"
#include "step.h"
#include "table_index.h"
#include "walk.h"

namespace spyre {
namespace {

constexpr int64_t kBlockRows = 256;

// Combines n elements of the table with those of the source, in place.
using Combine = void (*)(Word* table, const Word* source, int64_t n);

template <typename Op>
void combine_words(Word* table, const Word* source, int64_t n) {
  for (int64_t i = 0; i < n; ++i) table[i] = Op::finish(Op::next(table[i], source[i]));
}

// For elements that are words as they lie in memory, `place[i]` bytes from `table` on.
using CombineEach = void (*)(std::byte* table, const int64_t* place, const Word* source, int64_t n);

template <typename Op>
void combine_each(std::byte* table, const int64_t* place, const Word* source, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    Word word = 0;
    std::memcpy(&word, table + place[i], sizeof(word));
    word = Op::finish(Op::next(word, source[i]));
    std::memcpy(table + place[i], &word, sizeof(word));
  }
}

struct Combination {
  Combine words = nullptr;  // null: the source replaces what is in the table
  CombineEach each = nullptr;
};

template <typename Op>
constexpr Combination kCombination{combine_words<Op>, combine_each<Op>};

Combination combination(Opcode opcode) {
  switch (opcode) {
    case Opcode::scatter_add:
      return kCombination<Sum>;
    case Opcode::scatter_prod:
      return kCombination<Product>;
    case Opcode::scatter_amax:
      return kCombination<Largest>;
    case Opcode::scatter_amin:
      return kCombination<Smallest>;
    case Opcode::scatter_add_int:
      return kCombination<SumInt>;
    case Opcode::scatter_prod_int:
      return kCombination<ProductInt>;
    case Opcode::scatter_amax_int:
      return kCombination<LargestInt>;
    case Opcode::scatter_amin_int:
      return kCombination<SmallestInt>;
    default:
      return {};
  }
}

class ScatterRun {
 public:
  explicit ScatterRun(const CoreStep& step)
      : step_(step),
        source_(*step.operand[0].record),
        index_(*step.operand[kIndex].record),
        to_(*step.output().record),
        combine_(combination(static_cast<Opcode>(step.record->opcode))),
        load_source_(kernels::table().load[source_.format]),
        load_(kernels::table().load[to_.format]),
        store_(kernels::table().store[to_.format]),
        are_words_(kernels::table().round[to_.format] == nullptr),
        is_element_(lanes_of(to_) == Lanes::Element) {}

  void run() {
    run(0, {step_.operand[0].address, step_.operand[kIndex].address, step_.output().address});
  }

 private:
  struct Place {
    const std::byte* source;
    const std::byte* index;
    std::byte* to;
  };

  Place at(const Place& place, int dim, int64_t i) const {
    return {place.source + source_.stride[dim] * i, place.index + index_.stride[dim] * i,
            place.to + to_.stride[dim] * i};
  }

  void run(int dim, const Place& place) {
    const int rank = step_.record->rank;
    if (dim + 1 < rank) {
      for (point_[dim] = 0; point_[dim] < step_.extent[dim]; ++point_[dim]) {
        run(dim + 1, at(place, dim, point_[dim]));
      }
      return;
    }
    const int inner = std::max(0, rank - 1);
    const int64_t extent = rank > 0 ? step_.extent[inner] : 1;
    for (int64_t first = 0; first < extent; first += kBlockRows) {
      const int64_t count = std::min(kBlockRows, extent - first);
      const Place start = at(place, inner, first);
      for (int64_t i = 0; i < count; ++i) {
        const int32_t index = index_at(start.index + i * index_.stride[inner]);
        if (index < 0 || index >= step_.mask[0].count) {
          point_[inner] = first + i;
          fail_index(step_, index, point_);
        }
        row_[i] = index * to_.tile_stride + i * to_.stride[inner];
      }
      if (is_element_) {
        scatter_elements(start, source_.stride[inner], count);
      } else {
        scatter_sticks(start, inner, first, count);
      }
    }
  }

  void scatter_elements(const Place& place, int64_t stride, int64_t count) {
    const int bytes = element_bytes(format_of(source_));
    kernels::table().move_tile(bytes, place.source, 0, stride, bytes_.data(), 0, bytes, 1, count);
    if (combine_.words == nullptr && source_.format == to_.format) {
      put_elements(place.to, count);
      return;
    }
    load_source_(bytes_.data(), words_.data(), count);
    if (combine_.words == nullptr) {
      store_(words_.data(), bytes_.data(), count);
      put_elements(place.to, count);
      return;
    }
    if (are_words_) {
      combine_.each(place.to, row_.data(), words_.data(), count);
      return;
    }
    for (int64_t i = 0; i < count; ++i) combine(place.to + row_[i], words_.data() + i, 1);
  }

  // The elements in `bytes_`, each to its row.
  void put_elements(std::byte* to, int64_t count) const {
    switch (element_bytes(format_of(to_))) {
      case 1:
        return put<uint8_t>(to, count);
      case 2:
        return put<uint16_t>(to, count);
      default:
        return put<uint32_t>(to, count);
    }
  }
  template <typename Element>
  void put(std::byte* to, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + row_[i], bytes_.data() + i * sizeof(Element), sizeof(Element));
    }
  }

  void scatter_sticks(const Place& place, int inner, int64_t first, int64_t count) {
    const CoreOperand& source = step_.operand[0];
    const int lanes = step_.lanes / source.tiles;
    for (int64_t i = 0; i < count; ++i) {
      const std::byte* from = place.source + i * source_.stride[inner];
      if (combine_.words == nullptr && source_.format == to_.format) {
        std::memmove(place.to + row_[i], from, kStickBytes);
        continue;
      }
      point_[inner] = first + i;
      const int present = present_tiles();
      for (int tile = 0; tile < present; ++tile) {
        load_source_(from + tile * source_.tile_stride, words_.data() + tile * lanes, lanes);
      }
      std::fill(words_.begin() + present * lanes, words_.begin() + step_.lanes, Word{0});
      if (combine_.words == nullptr) {
        store_(words_.data(), place.to + row_[i], step_.lanes);
      } else {
        combine(place.to + row_[i], words_.data(), step_.lanes);
      }
    }
  }

  // Sticks of the source that are there at this iteration.
  int present_tiles() const {
    const int dim = step_.record->stick_dim;
    const bool is_tail = step_.is_tail && point_[dim] == step_.extent[dim] - 1;
    return is_tail && source_.tail_tiles != 0 ? source_.tail_tiles : step_.operand[0].tiles;
  }

  void combine(std::byte* place, const Word* source, int64_t n) {
    load_(place, table_words_.data(), n);
    combine_.words(table_words_.data(), source, n);
    store_(table_words_.data(), place, n);
  }

  const CoreStep& step_;
  const OperandRecord& source_;
  const OperandRecord& index_;
  const OperandRecord& to_;
  const Combination combine_;
  const kernels::Load load_source_;
  const kernels::Load load_;
  const kernels::Store store_;
  const bool are_words_;   // the table's elements are stored as they are computed with
  const bool is_element_;  // a row is one element
  std::array<int64_t, kStepRank> point_{};
  std::array<int64_t, kBlockRows> row_;  // where the rows of the block lie in the table
  alignas(64) std::array<Word, kBlockRows> words_;
  alignas(64) std::array<Word, kStickBytes> table_words_;
  alignas(64) std::array<std::byte, kBlockRows * sizeof(Word)> bytes_;
};

}  // namespace

void run_scatter(const CoreStep& step) { ScatterRun(step).run(); }

}  // namespace spyre
