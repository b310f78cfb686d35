#include "traffic.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <vector>

#include "walk.h"

namespace spyre {
namespace {

constexpr int64_t kMaxPieces = 1 << 13;  // that are sorted to find what they share

// A way through memory: a piece of bytes, repeated along dimensions, the largest stride first.
struct Comb {
  int64_t first = 0;
  int64_t bytes = 0;
  int rank = 0;
  struct Tooth {
    int64_t stride = 0;  // positive
    int64_t extent = 1;
    bool operator==(const Tooth&) const = default;
  };
  std::array<Tooth, kStepRank + 1> tooth{};

  int64_t end() const {
    int64_t end = first + bytes;
    for (int i = 0; i < rank; ++i) end += tooth[i].stride * (tooth[i].extent - 1);
    return end;
  }
};

Comb comb_of(const StepRecord& step, const OperandRecord& operand, int64_t base, const Box& box) {
  Comb comb;
  comb.first = base;
  comb.bytes =
      lanes_of(operand) == Lanes::Element ? element_bytes(format_of(operand)) : kStickBytes;
  const auto add = [&](int64_t stride, int64_t extent) {
    if (extent == 1 || stride == 0) return;
    if (stride < 0) comb.first += stride * (extent - 1);
    int place = comb.rank++;
    for (; place > 0 && comb.tooth[place - 1].stride < std::abs(stride); --place) {
      comb.tooth[place] = comb.tooth[place - 1];
    }
    comb.tooth[place] = {std::abs(stride), extent};
  };
  for (int dim = 0; dim < step.rank; ++dim) {
    comb.first += operand.stride[dim] * box.first[dim];
    add(operand.stride[dim], box.end[dim] - box.first[dim]);
  }
  add(operand.tile_stride, box.units);
  // Teeth without a whole stick between them form one piece.
  while (comb.rank > 0) {
    const auto& inner = comb.tooth[comb.rank - 1];
    if (inner.stride > std::max<int64_t>(comb.bytes, kStickBytes)) break;
    comb.bytes += inner.stride * (inner.extent - 1);
    --comb.rank;
  }
  return comb;
}

struct Piece {
  int64_t first, end;  // sticks
  bool operator<(const Piece& other) const { return first < other.first; }
};

int64_t count_union(std::vector<Piece>& pieces) {
  std::sort(pieces.begin(), pieces.end());
  int64_t sticks = 0;
  int64_t covered = std::numeric_limits<int64_t>::min();
  for (const Piece& piece : pieces) {
    if (piece.end <= covered) continue;
    sticks += piece.end - std::max(piece.first, covered);
    covered = piece.end;
  }
  return sticks;
}

void add_pieces(const Comb& comb, int depth, int64_t first, std::vector<Piece>& pieces) {
  if (depth == comb.rank) {
    pieces.push_back({first / kStickBytes, (first + comb.bytes + kStickBytes - 1) / kStickBytes});
    return;
  }
  for (int64_t i = 0; i < comb.tooth[depth].extent; ++i) {
    add_pieces(comb, depth + 1, first + i * comb.tooth[depth].stride, pieces);
  }
}

// Takes the outermost dimension off all combs if they have it in common and one of its iterations
// ends, for all of them, before the next begins. Returns its extent, or 0.
int64_t peel(std::vector<Comb>& combs) {
  if (combs.front().rank == 0) return 0;
  const Comb::Tooth outer = combs.front().tooth[0];
  int64_t first = std::numeric_limits<int64_t>::max(), end = 0;
  for (const Comb& comb : combs) {
    if (comb.rank == 0 || !(comb.tooth[0] == outer)) return 0;
    first = std::min(first, comb.first);
    end = std::max(end, comb.end() - outer.stride * (outer.extent - 1));
  }
  if (end - first > outer.stride || outer.stride % kStickBytes != 0) return 0;
  for (Comb& comb : combs) {
    std::copy(comb.tooth.begin() + 1, comb.tooth.begin() + comb.rank, comb.tooth.begin());
    --comb.rank;
  }
  return outer.extent;
}

bool is_same(const Comb& a, const Comb& b) {
  return a.first == b.first && a.bytes == b.bytes && a.rank == b.rank &&
         std::equal(a.tooth.begin(), a.tooth.begin() + a.rank, b.tooth.begin());
}

int64_t pieces_of(const Comb& comb) {
  Wide pieces = 1;
  for (int i = 0; i < comb.rank; ++i) pieces *= comb.tooth[i].extent;
  return static_cast<int64_t>(std::min<Wide>(pieces, kManyIterations));
}

int64_t count_sticks(std::vector<Comb>& combs) {
  int64_t factor = 1;
  while (const int64_t extent = peel(combs)) factor *= extent;
  int64_t pieces = 0;
  for (const Comb& comb : combs) pieces += std::min(pieces_of(comb), kMaxPieces + 1);
  if (pieces <= kMaxPieces) {
    std::vector<Piece> all;
    all.reserve(static_cast<size_t>(pieces));
    for (const Comb& comb : combs) add_pieces(comb, 0, comb.first, all);
    return factor * count_union(all);
  }
  int64_t sticks = 0;
  for (const Comb& comb : combs) {
    const int64_t most = (comb.end() + kStickBytes - 1) / kStickBytes - comb.first / kStickBytes;
    sticks += std::min(most, pieces_of(comb) * ((comb.bytes + kStickBytes - 1) / kStickBytes));
  }
  return factor * sticks;
}

}  // namespace

int64_t distinct_sticks(const Program& program, const StepRecord& step,
                        std::span<const OperandRecord* const> operands, int lanes,
                        std::span<const int> cores, std::span<const uint32_t> loops) {
  std::vector<Comb> combs;
  for (const int core : cores) {
    if (iterations_of(program, step, core_slot(step.cores, core)) == 0) continue;
    for (const OperandRecord* operand : operands) {
      const Walk walk = walk_of(program, step, *operand, core, lanes, loops);
      for (int i = 0; i < walk.boxes; ++i) {
        const Comb comb = comb_of(step, *operand, walk.base, walk.box[i]);
        const auto seen = [&](const Comb& other) { return is_same(comb, other); };
        if (std::none_of(combs.begin(), combs.end(), seen)) combs.push_back(comb);
      }
    }
  }
  return combs.empty() ? 0 : count_sticks(combs);
}

}  // namespace spyre
