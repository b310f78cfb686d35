#include "figures.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <span>

#include "../cost/cost.h"
#include "program.h"
#include "traffic.h"
#include "walk.h"

namespace spyre {
namespace {

// Loop iterations in which masks move that are priced one by one; beyond it the first stands for
// all.
constexpr int64_t kMaxPricedLoops = 1 << 10;

// A step at some indices of the loops around it.
class Description {
 public:
  // `is_tile`: loops repeat the step, so that one visit is a part of the work.
  Description(const Program& program, size_t step, std::span<const uint32_t> loops, bool is_tile)
      : program_(program),
        step_(program.steps[step]),
        lanes_(program.lanes[step]),
        loops_(loops),
        is_tile_(is_tile),
        operands_(operands_of(program, step_)) {
    for (int core = 0; core < kCores; ++core) {
      if (has_core(step_.cores, core)) cores_.push_back(core);
    }
  }

  // Multiply-adds, all cores together.
  int64_t macs() const {
    if (!is_kind(step_, StepKind::Matmul)) return 0;
    int64_t sum = 0;
    for (const int core : cores_) {
      if (iterations(core) > 0) sum += shape_of(core).macs();
    }
    return sum;
  }

  cost::Step describe() const {
    cost::Step cost;
    cost.traffic = traffic();
    cost.cores = static_cast<int>(cores_.size());
    cost.bytes_read = bytes_read();
    for (size_t i = step_.inputs; i < operands_.size(); ++i) {
      if (is_device(operands_[i])) cost.bytes_written += bytes_of(i, cores_);
    }
    for (const int& core : cores_) add_core(core, {&core, 1}, cost);
    if (cost.traffic == cost::Traffic::RowReduction) cost.rows = output_rows();
    if (is_kind(step_, StepKind::Matmul)) {
      add_matmul(cost);
    } else if (is_tile_ && cost.bytes_read + cost.bytes_written > 0) {
      add_tile(cost);
    }
    if (accumulates_in_rings(step_)) add_ring(cost);
    if (is_relayout(step_)) add_relayout(cost);
    return cost;
  }

 private:
  // Inputs in the same tensor share the sticks that they meet in.
  int64_t bytes_read() const {
    if (table_of(step_) >= 0) {
      int64_t bytes = 0;
      for (size_t i = 0; i < operands_.size(); ++i) {
        if (is_device(operands_[i]) && is_read(i)) bytes += bytes_of(i, cores_);
      }
      return bytes;
    }
    int64_t sticks = 0;
    std::vector<const OperandRecord*> left;
    for (const OperandRecord& input : operands_.first(step_.inputs)) {
      if (is_device(input)) left.push_back(&input);
    }
    while (!left.empty()) {
      const uint32_t symbol = left.front()->symbol;
      const auto other = std::stable_partition(left.begin(), left.end(),
                                               [&](auto* it) { return it->symbol == symbol; });
      const std::vector<const OperandRecord*> shared(left.begin(), other);
      sticks += distinct_sticks(program_, step_, shared, lanes_, cores_, loops_);
      left.erase(left.begin(), other);
    }
    return kStickBytes * sticks;
  }

  int64_t bytes_of(size_t operand, std::span<const int> cores) const {
    const OperandRecord* const one[] = {&operands_[operand]};
    int64_t sticks = distinct_sticks(program_, step_, one, lanes_, cores, loops_);
    if (static_cast<int>(operand) == table_of(step_)) {
      sticks = std::min(sticks, all_iterations(cores));
    }
    return kStickBytes * sticks;
  }

  // Which rows of a table the index names is not known here: every iteration counts as another
  // stick, as long as the table has so many.
  int64_t all_iterations(std::span<const int> cores) const {
    int64_t sum = 0;
    for (const int core : cores) sum += iterations(core);
    return sum;
  }

  // A table that is accumulated into is read, too.
  bool is_read(size_t operand) const {
    return operand < step_.inputs || accumulates_into_table(step_);
  }

  int64_t iterations(int core) const {
    return iterations_of(program_, step_, core_slot(step_.cores, core));
  }

  // The units of the busiest core: each takes the maximum of its own.
  void add_core(int core, std::span<const int> alone, cost::Step& cost) const {
    int64_t read = 0, written = 0;
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (!is_in_memory(operands_[i]) || is_device(operands_[i])) continue;
      const int64_t parts = is_owned(operands_[i]) ? step_.ring : 1;
      const int64_t bytes = parts * bytes_of(i, alone);
      if (i >= step_.inputs) written += bytes;
      if (is_read(i)) read += bytes;
    }
    cost.lx_read = std::max(cost.lx_read, read);
    cost.lx_written = std::max(cost.lx_written, written);
    cost.sfp_elements = std::max(cost.sfp_elements, iterations(core) * lanes_ * sfp_passes(core));
  }

  // How often each element goes through the vector unit. An Argsort merges rows of twice the length
  // in each pass (ours: nobody has measured one).
  int64_t sfp_passes(int core) const {
    switch (static_cast<StepKind>(step_.kind)) {
      case StepKind::Pointwise:
      case StepKind::Reduction:
      case StepKind::Scan:
        return 1;
      case StepKind::Scatter:
        return accumulates_into_table(step_) ? 1 : 0;
      case StepKind::Argsort: {
        const int dim = std::countr_zero(step_.reduced);
        const int64_t length = extent_at(program_, step_, core_slot(step_.cores, core), dim);
        return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(length, 1) - 1));
      }
      default:
        return 0;
    }
  }

  // ---- Which law -------------------------------------------------------------------------------

  cost::Traffic traffic() const {
    if (is_kind(step_, StepKind::Matmul)) return cost::Traffic::Matmul;
    const bool is_alone = program_.steps.size() == 1;
    const bool is_outside = std::any_of(operands_.begin(), operands_.end(), is_device);
    if (!is_alone || !is_outside) return cost::Traffic::Fused;
    switch (static_cast<StepKind>(step_.kind)) {
      case StepKind::Restickify:
        return cost::Traffic::Restickify;
      case StepKind::Reduction:
        return reduces_stick() ? cost::Traffic::RowReduction : cost::Traffic::CrossRowReduction;
      case StepKind::Pointwise:
        return has_broadcast() ? cost::Traffic::BroadcastPointwise : cost::Traffic::Fused;
      default:
        return cost::Traffic::Fused;
    }
  }

  bool reduces_stick() const {
    return step_.stick_dim != kNoStickDim && is_reduced(step_, step_.stick_dim);
  }

  // Does every core read an operand again and again, or one value for a whole stick?
  bool has_broadcast() const {
    for (const OperandRecord& operand : operands_.first(step_.inputs)) {
      if (!is_device(operand)) continue;
      if (lanes_of(operand) == Lanes::First) return true;
      for (int dim = 0; dim < step_.rank; ++dim) {
        if (operand.stride[dim] == 0 && is_walked(program_, step_, dim)) return true;
      }
    }
    return false;
  }

  int64_t output_rows() const {
    int64_t rows = 0;
    for (const int core : cores_) {
      if (iterations(core) == 0) continue;
      int64_t kept = 1;
      for (int dim = 0; dim < step_.rank; ++dim) {
        if (!is_reduced(step_, dim)) {
          kept *= extent_at(program_, step_, core_slot(step_.cores, core), dim);
        }
      }
      rows += kept;
    }
    return rows / partners_of(step_);
  }

  // Partial results go round the rings, all of which run at the same time: the largest group
  // counts.
  void add_ring(cost::Step& cost) const {
    cost.k_split = step_.ring;
    for (const int core : cores_) {
      int64_t kept = lanes_;
      for (int dim = 0; dim < step_.rank; ++dim) {
        if (is_reduced(step_, dim)) continue;
        kept *= extent_at(program_, step_, core_slot(step_.cores, core), dim);
      }
      cost.output_elements = std::max(cost.output_elements, kept);
    }
  }

  // What leaves each owner, and how many other cores take it as it passes.
  void add_relayout(cost::Step& cost) const {
    cost.relayout_split = step_.ring;
    std::map<std::array<int64_t, 3>, int> takers;  // by owner, place and size
    for (const int& core : cores_) {
      const int slot = core_slot(step_.cores, core);
      const int64_t place = base_at(program_, operands_[0], slot);
      const int64_t bytes = bytes_of(0, {&core, 1});
      for (const int64_t owner : owners_of(program_, step_, operands_[0], slot)) {
        if (owner != core) ++takers[{owner, place, bytes}];
      }
    }
    for (const auto& [part, count] : takers) {
      cost.relayout_bytes += cost::relayed_bytes(part[2], count);
    }
  }

  // ---- Tiles -----------------------------------------------------------------------------------

  // Of the busiest core. Without a stick dimension every iteration is a row of its own.
  void add_tile(cost::Step& cost) const {
    int64_t most = 0;
    for (const int core : cores_) {
      const int64_t count = iterations(core);
      if (count <= most) continue;
      most = count;
      const int64_t sticks =
          step_.stick_dim == kNoStickDim
              ? 1
              : extent_at(program_, step_, core_slot(step_.cores, core), step_.stick_dim);
      cost.tile_rows_per_core = count / sticks;
      cost.tile_columns = sticks * lanes_;
    }
  }

  // ---- Matmul ----------------------------------------------------------------------------------

  struct Shape {
    int64_t m = 1, n = 1, k = 1, batch = 1;
    int64_t macs() const { return m * n * k * batch; }
  };

  // Dimensions along which only A moves are rows, only B columns, both (or none) batches.
  Shape shape_of(int core) const {
    Shape shape;
    const int slot = core_slot(step_.cores, core);
    for (int dim = 0; dim < step_.rank; ++dim) {
      const int64_t extent = extent_at(program_, step_, slot, dim);
      if (is_reduced(step_, dim)) {
        shape.k *= valid_extent(core, dim, extent);
        continue;
      }
      const bool moves_a = operands_[0].stride[dim] != 0 && extent > 1;
      const bool moves_b = operands_[1].stride[dim] != 0 && extent > 1;
      if (dim == step_.stick_dim) {
        shape.n *= extent * lanes_;
      } else if (moves_a == moves_b) {
        shape.batch *= extent;
      } else {
        (moves_a ? shape.m : shape.n) *= extent;
      }
    }
    return shape;
  }

  // Along k: elements that count.
  int64_t valid_extent(int core, int dim, int64_t extent) const {
    const int64_t unit = counts_lanes(step_, dim) ? lanes_ : 1;
    int64_t valid = extent * unit;
    for (const MaskRecord& mask : masks_of(program_, step_)) {
      if (mask.dim != dim) continue;
      const int64_t count = mask_count(program_, mask, core_slot(step_.cores, core), loops_);
      valid = std::clamp<int64_t>(count, 0, valid);
    }
    return valid;
  }

  void add_matmul(cost::Step& cost) const {
    Shape busiest{0, 0, 0, 0};
    for (const int core : cores_) {
      const Shape shape = iterations(core) == 0 ? Shape{0, 0, 0, 0} : shape_of(core);
      if (shape.macs() > busiest.macs()) busiest = shape;
    }
    cost.m = busiest.m;
    cost.n = busiest.n;
    cost.k = busiest.k;
    cost.batch = busiest.batch;
    // The array works at the rate of its wider operand.
    cost.bits = std::max(format_info(format_of(operands_[0])).bits,
                         format_info(format_of(operands_[1])).bits);
    cost.a_broadcast = sharers(operands_[0]);
    cost.b_broadcast = sharers(operands_[1]);
    if (is_device(operands_[0])) cost.a_bytes = bytes_of(0, cores_);
    if (is_device(operands_[1])) cost.b_bytes = bytes_of(1, cores_);
  }

  // The most cores that read the same slice.
  int sharers(const OperandRecord& operand) const {
    std::map<int64_t, int> readers;
    int most = 1;
    for (const int core : cores_) {
      if (iterations(core) == 0) continue;
      most = std::max(most, ++readers[base_at(program_, operand, core_slot(step_.cores, core))]);
    }
    return most;
  }

  const Program& program_;
  const StepRecord& step_;
  const int lanes_;
  const std::span<const uint32_t> loops_;
  const bool is_tile_;
  const std::span<const OperandRecord> operands_;
  std::vector<int> cores_;
};

// ---- The tree ----------------------------------------------------------------------------------

void add_visits(StepFigures& figures, const Description& description, int64_t visits) {
  const cost::Step step = description.describe();
  const cost::Breakdown shares = cost::breakdown(step);
  const auto busy = [&](double share) { return visits * static_cast<int64_t>(std::ceil(share)); };
  figures.visits += visits;
  figures.cores = step.cores;
  figures.bytes_read += visits * step.bytes_read;
  figures.bytes_written += visits * step.bytes_written;
  figures.lx_read += visits * step.lx_read;
  figures.lx_written += visits * step.lx_written;
  figures.ring_bytes += visits * cost::ring_bytes(step);
  figures.macs += visits * description.macs();
  figures.nanoseconds += visits * cost::nanoseconds(step);
  figures.pt += busy(shares.pt);
  figures.sfp += busy(shares.sfp);
  figures.memory += busy(shares.memory);
  figures.lx += busy(shares.lx);
  figures.ring += busy(shares.ring);
}

// One node below loops of these counts. Where masks move with loops, iteration by iteration.
void add_node(const Program& program, uint32_t step, std::span<const uint32_t> counts,
              StepFigures& figures) {
  std::array<bool, kLoopDepth> moves{};
  for (const MaskRecord& mask : masks_of(program, program.steps[step])) {
    for (size_t depth = 0; depth < counts.size(); ++depth) {
      moves[depth] |= mask.loop_stride[depth] != 0;
    }
  }
  int64_t points = 1, others = 1;
  for (size_t depth = 0; depth < counts.size(); ++depth) {
    (moves[depth] ? points : others) *= counts[depth];
  }
  const bool is_tile = points * others > 1;
  std::array<uint32_t, kLoopDepth> index{};
  const std::span<const uint32_t> loops(index.data(), counts.size());
  if (points > kMaxPricedLoops) {
    add_visits(figures, Description(program, step, loops, is_tile), points * others);
    return;
  }
  for (int64_t i = 0; i < points; ++i) {
    add_visits(figures, Description(program, step, loops, is_tile), others);
    for (size_t depth = counts.size(); depth-- > 0;) {
      if (!moves[depth]) continue;
      if (++index[depth] < counts[depth]) break;
      index[depth] = 0;
    }
  }
}

}  // namespace

std::vector<StepFigures> figures_of(const Program& program) {
  std::vector<StepFigures> figures(program.steps.size());
  std::vector<size_t> ends;  // of the bodies of the enclosing loops
  std::vector<uint32_t> counts;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    while (!ends.empty() && ends.back() <= i) {
      ends.pop_back();
      counts.pop_back();
    }
    const NodeRecord& node = program.nodes[i];
    if (node.kind == static_cast<uint32_t>(NodeKind::Loop)) {
      ends.push_back(i + 1 + node.size);
      counts.push_back(node.count);
    } else {
      add_node(program, node.step, counts, figures[node.step]);
    }
  }
  return figures;
}

}  // namespace spyre
