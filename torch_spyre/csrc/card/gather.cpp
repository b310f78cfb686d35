// Gather steps: rows of a table, chosen by an index tensor.
//
// Indices are read and checked a block at a time; then, for every stick of a row, the block's rows
// are copied. Sticks that follow each other in a row go in one move. Where a row is one element,
// the elements of a block are collected, converted if they must be, and written together.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "step.h"
#include "table_index.h"
#include "walk.h"

namespace spyre {
namespace {

using kernels::Word;

constexpr int64_t kBlockRows = 256;
static_assert(kBlockRows >= kStickBytes);  // the lanes of a row take the place of a block

struct Dimension {
  int dim = 0;  // of the step
  int64_t extent = 1;
  int64_t table = 0, index = 0, to = 0;  // byte strides
};

struct Dimensions {
  int rank = 0;
  std::array<Dimension, kStepRank> at{};

  // The largest result stride first; equal ones keep their order.
  void insert(const Dimension& dimension) {
    int place = rank++;
    for (; place > 0 && std::abs(at[place - 1].to) < std::abs(dimension.to); --place) {
      at[place] = at[place - 1];
    }
    at[place] = dimension;
  }
};

class GatherRun {
 public:
  GatherRun(const CoreStep& step, bool is_tail)
      : step_(step),
        table_(*step.operand[0].record),
        to_(*step.output().record),
        load_(kernels::table().load[table_.format]),
        store_(kernels::table().store[to_.format]),
        is_element_(lanes_of(table_) == Lanes::Element),
        present_(is_tail && to_.tail_tiles != 0 ? to_.tail_tiles : step.output().tiles) {
    const OperandRecord& index = *step.operand[1].record;
    for (int dim = 0; dim < step.record->rank; ++dim) {
      if (step.extent[dim] == 1) continue;
      const Dimension dimension{dim, step.extent[dim], table_.stride[dim], index.stride[dim],
                                to_.stride[dim]};
      (dimension.index != 0 ? rows_ : columns_).insert(dimension);
    }
    if (is_move() && !is_element_ && columns_.rank > 0) {
      const Dimension& inner = columns_.at[columns_.rank - 1];
      if (inner.table == kStickBytes && inner.to == kStickBytes) {
        run_sticks_ = inner.extent;
        --columns_.rank;
      }
    }
  }

  void run() {
    run_rows(0, {step_.operand[0].address, step_.operand[1].address, step_.output().address});
  }

 private:
  struct Place {
    const std::byte* table;
    const std::byte* index;
    std::byte* to;

    Place step(const Dimension& dimension, int64_t count) const {
      return {table + dimension.table * count, index + dimension.index * count,
              to + dimension.to * count};
    }
  };

  bool is_move() const { return table_.format == to_.format; }

  // Dimensions along which the index moves; the last of them in blocks.
  void run_rows(int depth, const Place& place) {
    if (depth + 1 < rows_.rank) {
      for (point_[depth] = 0; point_[depth] < rows_.at[depth].extent; ++point_[depth]) {
        run_rows(depth + 1, place.step(rows_.at[depth], point_[depth]));
      }
      return;
    }
    const Dimension inner = rows_.rank > 0 ? rows_.at[depth] : Dimension{};
    for (int64_t first = 0; first < inner.extent; first += kBlockRows) {
      const int64_t count = std::min(kBlockRows, inner.extent - first);
      const Place start = place.step(inner, first);
      for (int64_t i = 0; i < count; ++i) {
        point_[depth] = first + i;
        row_[i] = row_at(start.index + i * inner.index) * table_.tile_stride + i * inner.table;
      }
      run_columns(0, start, inner, count);
    }
  }

  // The checked index.
  int64_t row_at(const std::byte* place) const {
    const int32_t index = index_at(place);
    if (index < 0 || index >= step_.mask[0].count) fail(index);
    return index;
  }

  [[noreturn]] void fail(int32_t index) const {
    std::array<int64_t, kStepRank> at{};
    for (int i = 0; i < rows_.rank; ++i) at[rows_.at[i].dim] = point_[i];
    fail_index(step_, index, at);
  }

  // Dimensions along which the index stands still: sticks of the same rows.
  void run_columns(int depth, const Place& place, const Dimension& inner, int64_t count) {
    if (depth < columns_.rank) {
      for (int64_t i = 0; i < columns_.at[depth].extent; ++i) {
        run_columns(depth + 1, place.step(columns_.at[depth], i), inner, count);
      }
      return;
    }
    if (is_element_) {
      gather_elements(place, inner, count);
      return;
    }
    if (is_move()) {
      for (int64_t i = 0; i < count; ++i) {
        std::memmove(place.to + i * inner.to, place.table + row_[i], run_sticks_ * kStickBytes);
      }
      return;
    }
    const int tile_lanes = step_.lanes / step_.output().tiles;
    for (int64_t i = 0; i < count; ++i) {
      load_(place.table + row_[i], words_.data(), step_.lanes);
      for (int tile = 0; tile < present_; ++tile) {
        store_(words_.data() + tile * tile_lanes, place.to + i * inner.to + tile * to_.tile_stride,
               tile_lanes);
      }
    }
  }

  void gather_elements(const Place& place, const Dimension& inner, int64_t count) {
    switch (element_bytes(format_of(table_))) {
      case 1:
        collect<uint8_t>(place.table, count);
        break;
      case 2:
        collect<uint16_t>(place.table, count);
        break;
      default:
        collect<uint32_t>(place.table, count);
    }
    if (!is_move()) {
      load_(bytes_.data(), words_.data(), count);
      store_(words_.data(), bytes_.data(), count);
    }
    const int to_bytes = element_bytes(format_of(to_));
    kernels::table().move_tile(to_bytes, bytes_.data(), 0, to_bytes, place.to, 0, inner.to, 1,
                               count);
  }

  template <typename Element>
  void collect(const std::byte* table, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(bytes_.data() + i * sizeof(Element), table + row_[i], sizeof(Element));
    }
  }

  const CoreStep& step_;
  const OperandRecord& table_;
  const OperandRecord& to_;
  const kernels::Load load_;
  const kernels::Store store_;
  const bool is_element_;   // a row is one element
  const int present_;       // sticks of the result that are there
  int64_t run_sticks_ = 1;  // of a row, in one move
  Dimensions rows_, columns_;
  std::array<int64_t, kStepRank> point_{};  // where in `rows_`
  std::array<int64_t, kBlockRows> row_;     // where the rows of the block lie in the table
  alignas(64) std::array<Word, kBlockRows> words_;
  alignas(64) std::array<std::byte, kBlockRows * sizeof(Word)> bytes_;
};

}  // namespace

void run_gather(const CoreStep& step) {
  if (!step.is_tail) {
    GatherRun(step, false).run();
    return;
  }
  const int dim = step.record->stick_dim;
  const int64_t last = step.extent[dim] - 1;
  if (last > 0) GatherRun(slice_step(step, dim, 0, last), false).run();
  GatherRun(slice_step(step, dim, last, last + 1), true).run();
}

}  // namespace spyre
