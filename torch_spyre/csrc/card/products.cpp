#include "products.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "walk.h"

namespace spyre {
namespace {

struct Offsets {
  int64_t a = 0, b = 0, c = 0;
};

using Extents = std::array<int64_t, kStepRank>;

// The operands' offsets at every iteration of the dimensions in `dims`, in order.
std::vector<Offsets> offsets_of(const CoreStep& step, uint32_t dims, const Extents& extent) {
  std::vector<Offsets> all{{}};
  for (int dim = 0; dim < step.record->rank; ++dim) {
    if ((dims >> dim & 1) == 0 || extent[dim] == 1) continue;
    const int64_t a = step.operand[0].record->stride[dim];
    const int64_t b = step.operand[1].record->stride[dim];
    const int64_t c = step.operand[2].record->stride[dim];
    std::vector<Offsets> next;
    next.reserve(all.size() * extent[dim]);
    for (const Offsets& at : all) {
      for (int64_t i = 0; i < extent[dim]; ++i) {
        next.push_back({at.a + i * a, at.b + i * b, at.c + i * c});
      }
    }
    all = std::move(next);
  }
  return all;
}

// How far the core goes along each dimension of k; `lane_dim` counts in elements. The positions
// that count are those below a limit, so a mask makes the extent smaller.
Extents depth_extents(const CoreStep& step) {
  const StepRecord& record = *step.record;
  Extents extent{};
  for (int dim = 0; dim < record.rank; ++dim) {
    if ((record.reduced >> dim & 1) != 0) extent[dim] = step.extent[dim];
  }
  extent[record.lane_dim] *= step.lanes;
  for (int i = 0; i < record.masks; ++i) {
    int64_t& limited = extent[step.mask[i].dim];
    limited = std::clamp<int64_t>(step.mask[i].count, 0, limited);
  }
  return extent;
}

// What a partner does along k, and how far its operands are from those of the first one.
struct DepthPart {
  Extents extent;
  int64_t a, b;
  auto operator<=>(const DepthPart&) const = default;
};

void add_part(const CoreStep& step, const DepthPart& part, Depth& depth) {
  const int lane_dim = step.record->lane_dim;
  const int own = k_lanes_of(step);
  Extents extent = part.extent;
  const int64_t elements = extent[lane_dim];
  extent[lane_dim] = (elements + step.lanes - 1) / step.lanes;
  const std::vector<Offsets> iterations = offsets_of(step, step.record->reduced, extent);
  for (size_t i = 0; i < iterations.size(); ++i) {
    int64_t left = elements - static_cast<int64_t>(i % extent[lane_dim]) * step.lanes;
    Offsets at = iterations[i];
    for (int tile = 0; tile < step.operand[0].tiles && left > 0; ++tile, left -= own) {
      const auto count = static_cast<int>(std::min<int64_t>(own, left));
      depth.sticks.push_back({at.a + part.a, at.b + part.b, count});
      at.a += step.operand[0].record->tile_stride;
      at.b += own * step.operand[1].record->tile_stride;
    }
  }
  depth.ends.push_back(depth.sticks.size());
}

// The problems of a step, from what its cores are to do.
class Search {
 public:
  explicit Search(std::span<const CoreStep> cores) {
    const auto partners = static_cast<size_t>(partners_of(*cores[0].record));
    products_.copies = storing_partners(cores);
    for (size_t i = 0; i < cores.size(); i += partners) add(cores.subspan(i, partners));
    join_panels(cores[0]);
  }

  Products take() { return std::move(products_); }

 private:
  // Rows that meet the same sticks of B.
  struct Slab {
    int depth;
    const std::byte* b;
    int64_t sticks;
    bool is_tail;
    std::vector<const std::byte*> rows;
    std::vector<std::vector<std::byte*>> results;  // of each copy
  };

  void add(std::span<const CoreStep> group) {
    const CoreStep& core = group[0];
    const StepRecord& record = *core.record;
    uint32_t rows = 0;
    uint32_t batches = 0;
    for (int dim = 0; dim < record.rank; ++dim) {
      if (dim == record.stick_dim || (record.reduced >> dim & 1) != 0) continue;
      const bool is_batch = core.extent[dim] > 1 && core.operand[1].record->stride[dim] != 0;
      (is_batch ? batches : rows) |= uint32_t{1} << dim;
    }
    const int depth = depth_of(group);
    const int64_t sticks = core.extent[record.stick_dim];
    const std::vector<Offsets> row = offsets_of(core, rows, core.extent);
    for (const Offsets& batch : offsets_of(core, batches, core.extent)) {
      const std::byte* b = core.operand[1].address + batch.b;
      const auto [place, is_new] =
          slab_.try_emplace({depth, b, sticks, core.is_tail}, slabs_.size());
      if (is_new) {
        Slab& slab = slabs_.emplace_back(Slab{depth, b, sticks, core.is_tail, {}, {}});
        slab.results.resize(static_cast<size_t>(products_.copies));
        slab.rows.reserve(row.size());
        for (auto& copy : slab.results) copy.reserve(row.size());
      }
      Slab& slab = slabs_[place->second];
      for (const Offsets& at : row) {
        slab.rows.push_back(core.operand[0].address + batch.a + at.a);
        for (int i = 0; i < products_.copies; ++i) {
          slab.results[i].push_back(group[i].output().address + batch.c + at.c);
        }
      }
    }
  }

  int depth_of(std::span<const CoreStep> group) {
    std::vector<DepthPart> parts;
    for (const CoreStep& core : group) {
      parts.push_back({depth_extents(core), core.operand[0].address - group[0].operand[0].address,
                       core.operand[1].address - group[0].operand[1].address});
    }
    const auto [place, is_new] =
        depth_.try_emplace(parts, static_cast<int>(products_.depths.size()));
    if (is_new) {
      Depth& depth = products_.depths.emplace_back();
      for (const DepthPart& part : parts) add_part(group[0], part, depth);
    }
    return place->second;
  }

  // Slabs of the same rows become one problem.
  void join_panels(const CoreStep& step) {
    const OperandRecord& b = *step.operand[1].record;
    const OperandRecord& c = *step.output().record;
    const int dim = step.record->stick_dim;
    std::vector<Problem>& problems = products_.problems;
    std::map<std::pair<int, std::vector<const std::byte*>>, size_t> problem_of;
    for (Slab& slab : slabs_) {
      auto [place, is_new] =
          problem_of.try_emplace({slab.depth, std::move(slab.rows)}, problems.size());
      if (is_new) problems.push_back({slab.depth, place->first.second, {}, {}});
      Problem& problem = problems[place->second];
      const int results = static_cast<int>(problem.results.size());
      for (auto& copy : slab.results) problem.results.push_back(std::move(copy));
      for (int64_t i = 0; i < slab.sticks; ++i) {
        const bool is_tail = slab.is_tail && i == slab.sticks - 1;
        // A step without a second stick may have any stride.
        problem.panels.push_back({slab.b + (i == 0 ? 0 : i * b.stride[dim]),
                                  i == 0 ? 0 : i * c.stride[dim], results,
                                  is_tail ? c.tail_tiles : step.output().tiles});
      }
    }
  }

  Products products_;
  std::vector<Slab> slabs_;
  std::map<std::tuple<int, const std::byte*, int64_t, bool>, size_t> slab_;
  std::map<std::vector<DepthPart>, int> depth_;
};

}  // namespace

Products products_of(std::span<const CoreStep> cores) { return Search(cores).take(); }

int k_lanes_of(const CoreStep& step) { return step.lanes / step.operand[0].tiles; }

}  // namespace spyre
