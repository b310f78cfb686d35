// Copies described by a loop nest: how the loops are ordered, blocked and cut.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace spyre::kernels {
namespace {

// The tile buffers live on the stack and stay inside a host core's L1/L2.
constexpr int64_t kBufferBytes = 32 * 1024;
// Shorter contiguous runs are gathered first: converting them one by one is mostly overhead.
constexpr int64_t kShortRun = 32;
// Rows taken together when the two sides disagree about the order of the outer loops: long
// enough for consecutive lines on the one side, few enough streams on the other.
constexpr int64_t kRowBlock = 8;

struct Loop {
  int64_t extent = 1;
  int64_t from = 0;
  int64_t to = 0;
};

Loop loop_at(const CopyNest& nest, int i) {
  const auto at = static_cast<size_t>(i);
  return {nest.extent[at], nest.from_stride[at], nest.to_stride[at]};
}

void put_loop(CopyNest& nest, int i, const Loop& loop) {
  const auto at = static_cast<size_t>(i);
  nest.extent[at] = loop.extent;
  nest.from_stride[at] = loop.from;
  nest.to_stride[at] = loop.to;
}

Loop take_loop(CopyNest& nest, int i) {
  const Loop loop = loop_at(nest, i);
  for (int j = i; j + 1 < nest.rank; ++j) put_loop(nest, j, loop_at(nest, j + 1));
  --nest.rank;
  return loop;
}

// Calls `body(from_offset, to_offset)` for every iteration of the nest.
template <typename Body>
void for_each(const CopyNest& nest, Body body) {
  std::array<int64_t, kMaxRank> index{};
  int64_t from = 0;
  int64_t to = 0;
  while (true) {
    body(from, to);
    int i = nest.rank - 1;
    for (; i >= 0; --i) {
      const auto at = static_cast<size_t>(i);
      from += nest.from_stride[at];
      to += nest.to_stride[at];
      if (++index[at] < nest.extent[at]) break;
      from -= nest.from_stride[at] * nest.extent[at];
      to -= nest.to_stride[at] * nest.extent[at];
      index[at] = 0;
    }
    if (i < 0) return;
  }
}

// Copies the inner loops of a nest. Each kind of access has its own function; they share what
// doesn't change between calls.
class Panel {
 public:
  explicit Panel(const Codec& codec) : codec_(codec), table_(table()) {}

  int64_t misfits() const { return misfits_; }

  // Along `run` both sides are contiguous; `rows` is the next loop of the destination, `near`
  // of the source.
  void copy_runs(const Loop& near, const Loop& rows, int64_t run, const std::byte* from,
                 std::byte* to) {
    for (int64_t start = 0; start < rows.extent; start += kRowBlock) {
      const int64_t count = std::min(kRowBlock, rows.extent - start);
      for (int64_t i = 0; i < near.extent; ++i) {
        const std::byte* source = from + start * rows.from + i * near.from;
        std::byte* target = to + start * rows.to + i * near.to;
        for (int64_t j = 0; j < count; ++j) {
          convert(source + j * rows.from, target + j * rows.to, run);
        }
      }
    }
  }

  // The source is contiguous along `a`, the destination along `b`: transposes tiles; of runs of
  // the source that were converted into a buffer, if they have to be.
  void transpose(const Loop& a, const Loop& b, const std::byte* from, std::byte* to) {
    const int64_t elements = kBufferBytes / codec_.to_bytes;
    const int64_t b_tile = std::min<int64_t>(b.extent, a.extent < 64 ? elements / 64 : 64);
    const int64_t a_tile = std::min(a.extent, elements / b_tile);
    const int64_t row = a_tile * codec_.to_bytes;
    for (int64_t i = 0; i < a.extent; i += a_tile) {
      const int64_t width = std::min(a_tile, a.extent - i);
      for (int64_t j = 0; j < b.extent; j += b_tile) {
        const int64_t height = std::min(b_tile, b.extent - j);
        const std::byte* source = from + i * a.from + j * b.from;
        std::byte* target = to + i * a.to + j * b.to;
        if (codec_.convert == nullptr) {
          table_.move_tile(codec_.to_bytes, source, b.from, codec_.to_bytes, target, b.to, a.to,
                           height, width);
          continue;
        }
        for (int64_t k = 0; k < height; ++k) {
          convert(source + k * b.from, converted_ + k * row, width);
        }
        table_.move_tile(codec_.to_bytes, converted_, row, codec_.to_bytes, target, b.to, a.to,
                         height, width);
      }
    }
  }

  // Any strides: gathers a tile, converts it in one go, scatters it.
  void copy_any(const Loop& rows, const Loop& cols, const std::byte* from, std::byte* to) {
    if (codec_.convert == nullptr) {
      table_.move_tile(codec_.to_bytes, from, rows.from, cols.from, to, rows.to, cols.to,
                       rows.extent, cols.extent);
      return;
    }
    const int64_t elements = kBufferBytes / 8;
    const int64_t width = std::min(cols.extent, elements);
    const int64_t height = std::min(rows.extent, elements / width);
    for (int64_t i = 0; i < rows.extent; i += height) {
      for (int64_t j = 0; j < cols.extent; j += width) {
        copy_gathered({std::min(height, rows.extent - i), rows.from, rows.to},
                      {std::min(width, cols.extent - j), cols.from, cols.to},
                      from + i * rows.from + j * cols.from, to + i * rows.to + j * cols.to);
      }
    }
  }

 private:
  void convert(const std::byte* from, std::byte* to, int64_t n) {
    if (codec_.convert == nullptr) {
      std::memmove(to, from, static_cast<size_t>(n * codec_.to_bytes));
    } else {
      misfits_ += codec_.convert(from, to, n);
    }
  }

  void copy_gathered(const Loop& rows, const Loop& cols, const std::byte* from, std::byte* to) {
    table_.move_tile(codec_.from_bytes, from, rows.from, cols.from, gathered_,
                     cols.extent * codec_.from_bytes, codec_.from_bytes, rows.extent, cols.extent);
    convert(gathered_, converted_, rows.extent * cols.extent);
    table_.move_tile(codec_.to_bytes, converted_, cols.extent * codec_.to_bytes, codec_.to_bytes,
                     to, rows.to, cols.to, rows.extent, cols.extent);
  }

  const Codec codec_;
  const Table& table_;
  int64_t misfits_ = 0;
  alignas(64) std::byte gathered_[kBufferBytes];
  alignas(64) std::byte converted_[kBufferBytes];
};

// The loop along which the source is contiguous, other than the last; -1: none.
int contiguous_source(const CopyNest& nest, int from_bytes) {
  for (int i = nest.rank - 2; i >= 0; --i) {
    if (loop_at(nest, i).from == from_bytes) return i;
  }
  return -1;
}

// The loop with the shortest step in the source.
int nearest_source(const CopyNest& nest) {
  int best = nest.rank - 1;
  for (int i = nest.rank - 1; i >= 0; --i) {
    const int64_t step = std::abs(loop_at(nest, i).from);
    if (step != 0 && step < std::abs(loop_at(nest, best).from)) best = i;
  }
  return best;
}

}  // namespace

CopyNest simplify(const CopyNest& nest) {
  std::array<Loop, kMaxRank> loops;
  int rank = 0;
  for (int i = 0; i < nest.rank; ++i) {
    const Loop loop = loop_at(nest, i);
    if (loop.extent <= 0) {
      CopyNest empty;
      empty.rank = 1;
      return empty;
    }
    if (loop.extent > 1) loops[static_cast<size_t>(rank++)] = loop;
  }
  // In the order of the destination: whole lines are written, and reads can be prefetched.
  std::stable_sort(loops.begin(), loops.begin() + rank, [](const Loop& a, const Loop& b) {
    if (a.to != b.to) return std::abs(a.to) > std::abs(b.to);
    return std::abs(a.from) > std::abs(b.from);
  });
  CopyNest result;
  for (int i = 0; i < rank; ++i) {
    const Loop inner = loops[static_cast<size_t>(i)];
    const Loop outer = result.rank > 0 ? loop_at(result, result.rank - 1) : Loop{};
    const bool nests = result.rank > 0 && outer.from == inner.from * inner.extent &&
                       outer.to == inner.to * inner.extent;
    if (nests) --result.rank;
    put_loop(result, result.rank++,
             nests ? Loop{outer.extent * inner.extent, inner.from, inner.to} : inner);
  }
  return result;
}

int64_t run_copy(const CopyNest& nest, const Codec& codec, const std::byte* from, std::byte* to) {
  CopyNest outer = simplify(nest);
  if (outer.rank == 1 && outer.extent[0] == 0) return 0;
  const Loop single{1, codec.from_bytes, codec.to_bytes};
  Panel panel(codec);

  const int source = contiguous_source(outer, codec.from_bytes);
  const Loop last = outer.rank > 0 ? loop_at(outer, outer.rank - 1) : single;
  const bool is_dense_target = last.to == codec.to_bytes;
  const bool is_run = is_dense_target && last.from == codec.from_bytes;
  if (outer.rank > 0) --outer.rank;

  if (is_run && (last.extent >= kShortRun || outer.rank == 0)) {
    const int near = outer.rank > 1 ? nearest_source(outer) : outer.rank - 1;
    const Loop rows = outer.rank > 0 ? take_loop(outer, outer.rank - 1) : single;
    const Loop columns = near >= 0 && near < outer.rank ? take_loop(outer, near) : single;
    for_each(outer, [&](int64_t from_offset, int64_t to_offset) {
      panel.copy_runs(columns, rows, last.extent, from + from_offset, to + to_offset);
    });
  } else if (is_dense_target && !is_run && source >= 0) {
    const Loop along = take_loop(outer, source);
    for_each(outer, [&](int64_t from_offset, int64_t to_offset) {
      panel.transpose(along, last, from + from_offset, to + to_offset);
    });
  } else {
    const Loop rows = outer.rank > 0 ? take_loop(outer, outer.rank - 1) : single;
    for_each(outer, [&](int64_t from_offset, int64_t to_offset) {
      panel.copy_any(rows, last, from + from_offset, to + to_offset);
    });
  }
  return panel.misfits();
}

NestSlice slice(const CopyNest& nest, int parts, int index) {
  int cut = -1;
  for (int i = 0; i < nest.rank; ++i) {
    const Loop loop = loop_at(nest, i);
    if (loop.to == 0) continue;  // its iterations write the same place
    if (cut < 0 || loop.extent > loop_at(nest, cut).extent) cut = i;
    if (loop.extent >= parts) {
      cut = i;
      break;
    }
  }
  NestSlice piece{nest, 0, 0};
  if (cut < 0) {  // a single element
    if (index > 0) {
      piece.nest.rank = 1;
      piece.nest.extent[0] = 0;
    }
    return piece;
  }
  Loop loop = loop_at(nest, cut);
  // Cuts fall between whole sticks of the destination, so that no two threads share a line.
  const int64_t step = std::abs(loop.to);
  const int64_t grain =
      step < kStickBytes && loop.extent * step >= kStickBytes * parts ? kStickBytes / step : 1;
  const int64_t grains = (loop.extent + grain - 1) / grain;
  const int64_t begin = std::min(loop.extent, grains * index / parts * grain);
  const int64_t end = std::min(loop.extent, grains * (index + 1) / parts * grain);
  loop.extent = end - begin;
  put_loop(piece.nest, cut, loop);
  piece.from_offset = begin * loop.from;
  piece.to_offset = begin * loop.to;
  return piece;
}

}  // namespace spyre::kernels
