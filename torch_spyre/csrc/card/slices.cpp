#include "slices.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <utility>

#include "chain.h"
#include "walk.h"

namespace spyre {
namespace {

// Slices smaller than this take longer to bind than they save, larger ones leave the cache.
constexpr int64_t kLeastElements = 16 * 1024;
constexpr int64_t kMostElements = 256 * 1024;

// What a step touches through one operand. The ways it walks are those that lead somewhere, the
// shortest first, the sticks of an iteration among them.
struct Touch {
  struct Way {
    int64_t stride, count;
    bool operator==(const Way&) const = default;
  };
  const std::byte* address;
  const std::byte* first;
  const std::byte* end;
  int64_t slice_stride;
  bool is_write;
  int ways = 0;
  std::array<Way, kStepRank + 1> way{};

  Touch(const CoreStep& step, const CoreOperand& operand, int slice_dim, bool is_output)
      : address(operand.address),
        first(operand.address),
        end(operand.address + kStickBytes),
        slice_stride(operand.record->stride[slice_dim]),
        is_write(is_output) {
    for (int dim = 0; dim < step.record->rank; ++dim) {
      add(operand.record->stride[dim], step.extent[dim]);
    }
    if (operand.tiles > 1) add(operand.record->tile_stride, operand.tiles);
  }

  void add(int64_t stride, int64_t count) {
    if (stride == 0 || count == 1) return;
    int place = ways++;
    for (; place > 0 && std::abs(way[place - 1].stride) > std::abs(stride); --place) {
      way[place] = way[place - 1];
    }
    way[place] = {stride, count};
    (stride > 0 ? end : first) += stride * (count - 1);
  }

  bool overlaps(const Touch& other) const { return first < other.end && other.first < end; }
  bool conflicts(const Touch& other) const {
    return (is_write || other.is_write) && overlaps(other);
  }

  // Does every place have memory of its own? Sufficient, not necessary: the ways nest.
  bool is_injective() const {
    int64_t covered = kStickBytes;
    for (int i = 0; i < ways; ++i) {
      const int64_t stride = std::abs(way[i].stride);
      if (stride < covered) return false;
      covered += stride * (way[i].count - 1);
    }
    return true;
  }

  // Does each slice touch the same memory as the other's, and no two slices any in common?
  bool has_slices_of(const Touch& other) const {
    return address == other.address && slice_stride == other.slice_stride && slice_stride != 0 &&
           ways == other.ways && std::equal(way.begin(), way.begin() + ways, other.way.begin()) &&
           is_injective();
  }
};

// Units that are cut along one dimension each. A copy whose place a later one of them writes over
// need not be made: those that read it in between can read what is copied.
class Forwarding {
 public:
  Forwarding(std::span<const Unit> units, std::span<const int> dims)
      : units_(units.begin(), units.end()), dims_(dims) {
    for (size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].size() == 1 && is_stick_copy(units_[i][0]) && forward(i)) units_[i].clear();
    }
  }

  // A unit that is not needed any more is empty.
  const std::vector<Unit>& units() const { return units_; }

 private:
  bool forward(size_t index) {
    const CoreStep copy = units_[index][0];
    const Touch from(copy, copy.operand[0], dims_[index], false);
    const Touch to(copy, copy.output(), dims_[index], true);
    if (!is_plain_copy(copy) || !to.is_injective() || from.overlaps(to)) return false;
    std::vector<std::pair<const CoreStep*, CoreOperand*>> readers;
    bool is_over = false;
    for (size_t i = index + 1; i < units_.size() && !is_over; ++i) {
      for (CoreStep& step : units_[i]) {
        for (int k = 0; k < step.operands(); ++k) {
          CoreOperand& operand = step.operand[k];
          if (!is_in_memory(*operand.record)) continue;
          const bool is_output = k >= step.record->inputs;
          const Touch touch(step, operand, dims_[i], is_output);
          // Steps of a unit may write before all that an earlier one reads has been read.
          if (is_output && touch.overlaps(from)) return false;
          if (is_over || !touch.overlaps(to)) continue;
          if (!touch.has_slices_of(to)) return false;
          if (is_output) {
            is_over = true;
          } else if (may_read(step, operand, copy)) {
            readers.emplace_back(&step, &operand);
          } else {
            return false;
          }
        }
      }
    }
    if (!is_over) return false;
    for (const auto& [step, operand] : readers) redirect(*step, *operand, copy);
    return true;
  }

  // Every iteration copies a stick to a place of its own.
  static bool is_plain_copy(const CoreStep& copy) {
    for (int dim = 0; dim < copy.record->rank; ++dim) {
      if (copy.extent[dim] > 1 && copy.output().record->stride[dim] == 0) return false;
    }
    return copy.output().tiles == 1;
  }

  // The copy's dimension that goes the same way through its result; -1 if there is none.
  static int same_way(const CoreStep& copy, int64_t stride, int64_t extent) {
    for (int dim = 0; dim < copy.record->rank; ++dim) {
      if (copy.extent[dim] == extent && copy.output().record->stride[dim] == stride) return dim;
    }
    return -1;
  }

  static bool may_read(const CoreStep& step, const CoreOperand& operand, const CoreStep& copy) {
    const OperandRecord& record = *operand.record;
    if (record.format != copy.output().record->format || lanes_of(record) != Lanes::Vector ||
        operand.tiles != 1) {
      return false;
    }
    for (int dim = 0; dim < step.record->rank; ++dim) {
      const int64_t stride = record.stride[dim];
      const bool moves = step.extent[dim] > 1 && stride != 0;
      if (moves && same_way(copy, stride, step.extent[dim]) < 0) return false;
    }
    return true;
  }

  void redirect(const CoreStep& step, CoreOperand& operand, const CoreStep& copy) {
    OperandRecord& record = records_.emplace_back(*copy.operand[0].record);
    for (int dim = 0; dim < step.record->rank; ++dim) {
      const int64_t stride = operand.record->stride[dim];
      const bool moves = step.extent[dim] > 1 && stride != 0;
      record.stride[dim] =
          moves ? copy.operand[0].record->stride[same_way(copy, stride, step.extent[dim])] : 0;
    }
    operand.record = &record;
    operand.address = copy.operand[0].address;
  }

  std::vector<Unit> units_;
  std::span<const int> dims_;
  std::deque<OperandRecord> records_;  // which operands point to
};

// The units that can be cut along one dimension of the first.
class Cut {
 public:
  Cut(std::span<const Unit> units, int first_dim) : units_(units) {
    if (!may_cut(units[0], first_dim)) return;
    extent_ = units[0][0].extent[first_dim];
    while (taken() < units.size() && take()) continue;
  }

  size_t taken() const { return dims_.size(); }

  // Iterations of a slice; 0 if cutting does not pay.
  int64_t slice_length() const {
    int64_t elements = 0;  // of an iteration, in the largest step
    int64_t length = 1;    // iterations that make a block of it
    bool has_reduction = false;
    for (size_t i = 0; i < taken(); ++i) {
      const CoreStep& step = units_[i][0];
      const int64_t own = step.iterations() / extent_ * step.lanes;
      if (own > elements) length = std::max<int64_t>(1, kernels::kBlockElements / step.lanes);
      elements = std::max(elements, own);
      has_reduction |= is_kind(*step.record, StepKind::Reduction);
    }
    while (length * elements < kLeastElements) length *= 2;
    while (length > 1 && length * elements > kMostElements) length /= 2;
    return has_reduction && taken() > 1 && length < extent_ ? length : 0;
  }

  void run(int64_t length, const std::function<void(const Unit&)>& run_unit) const {
    const Forwarding forwarding(units_.first(taken()), dims_);
    Unit slice;
    for (int64_t begin = 0; begin < extent_; begin += length) {
      const int64_t end = std::min(begin + length, extent_);
      for (size_t i = 0; i < taken(); ++i) {
        slice.clear();
        for (const CoreStep& step : forwarding.units()[i]) {
          slice.push_back(slice_step(step, dims_[i], begin, end));
        }
        if (!slice.empty()) run_unit(slice);
      }
    }
  }

 private:
  static bool may_cut(const Unit& unit, int dim) {
    const StepRecord& record = *unit[0].record;
    if (dim >= record.rank || unit[0].extent[dim] < 2 || is_reduced(record, dim)) return false;
    return dim != record.stick_dim ||
           std::none_of(unit.begin(), unit.end(),
                        [](const CoreStep& step) { return step.is_tail; });
  }

  // The next unit, along the first dimension that goes with the units so far.
  bool take() {
    const Unit& unit = units_[taken()];
    for (int dim = 0; dim < unit[0].record->rank; ++dim) {
      if (!may_cut(unit, dim) || unit[0].extent[dim] != extent_) continue;
      const size_t before = touches_.size();
      if (add_touches(unit, dim)) {
        dims_.push_back(dim);
        return true;
      }
      touches_.erase(touches_.begin() + static_cast<int64_t>(before), touches_.end());
    }
    return false;
  }

  bool add_touches(const Unit& unit, int dim) {
    for (const CoreStep& step : unit) {
      for (int i = 0; i < step.operands(); ++i) {
        const CoreOperand& operand = step.operand[i];
        if (!is_in_memory(*operand.record)) continue;
        const Touch touch(step, operand, dim, i >= step.record->inputs);
        for (const Touch& other : touches_) {
          if (touch.conflicts(other) && !touch.has_slices_of(other)) return false;
        }
        touches_.push_back(touch);
      }
    }
    return true;
  }

  std::span<const Unit> units_;
  int64_t extent_ = 0;
  std::vector<int> dims_;  // per unit
  std::vector<Touch> touches_;
};

}  // namespace

size_t run_in_slices(std::span<const Unit> units, const std::function<void(const Unit&)>& run) {
  // What is no longer than a slice need not be looked at.
  const bool is_short = std::all_of(units.begin(), units.end(), [](const Unit& unit) {
    return unit[0].iterations() * unit[0].lanes <= kLeastElements;
  });
  if (is_short) return 0;
  const int rank = units[0][0].record->rank;
  size_t most = 0;
  int best = -1;
  for (int dim = 0; dim < rank; ++dim) {
    const Cut cut(units, dim);
    if (cut.taken() > most && cut.slice_length() > 0) {
      most = cut.taken();
      best = dim;
    }
  }
  if (best < 0) return 0;
  const Cut cut(units, best);
  cut.run(cut.slice_length(), run);
  return most;
}

}  // namespace spyre
