#include "validate_kinds.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string>

#include "rejection.h"
#include "step.h"
#include "walk.h"

namespace spyre {
namespace {

// Far above every real position, far below where sums of positions would overflow.
constexpr Wide kMaxMaskWay = int64_t{1} << 50;

class KindRules {
 public:
  KindRules(const Program& program, size_t index)
      : program_(program), index_(index), step_(program.steps[index]) {}

  void check() {
    check_fields();
    if (accumulates_in_rings(step_)) check_ring();
    check_operand_lanes();
    switch (static_cast<StepKind>(step_.kind)) {
      case StepKind::Reduction:
        check_reduction();
        break;
      case StepKind::Matmul:
        check_matmul();
        break;
      case StepKind::Gather:
        check_gather();
        break;
      case StepKind::Scatter:
        check_scatter();
        break;
      case StepKind::Argsort:
        check_along();
        check_positions();
        break;
      case StepKind::Scan:
        check_scan();
        break;
      case StepKind::Ring:
        check_relayout();
        break;
      default:
        break;
    }
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { reject("step", index_, reason); }
  [[noreturn]] void fail_operand(int position, const std::string& reason) const {
    reject("operand", step_.first_operand + position, reason);
  }
  const OperandRecord& operand(int position) const {
    return program_.operands[step_.first_operand + position];
  }

  // Fields that only some kinds have.
  void check_fields() const {
    const bool accumulates =
        is_kind(step_, StepKind::Reduction) || is_kind(step_, StepKind::Matmul);
    const bool goes_along = is_kind(step_, StepKind::Argsort) || is_kind(step_, StepKind::Scan);
    if (!accumulates && !goes_along && !is_relayout(step_) && step_.reduced != 0) {
      fail("only Reduction and Matmul steps accumulate");
    }
    if (accumulates && step_.reduced == 0) fail("it accumulates no dimension");
    if (goes_along && std::popcount(step_.reduced) != 1) {
      fail("an Argsort or Scan goes along one dimension");
    }
    if (step_.reduced >> step_.rank != 0) {
      const char* const what = accumulates ? "accumulates" : goes_along ? "goes along" : "counts";
      fail(std::string("it ") + what + " a dimension that is not among its " +
           std::to_string(step_.rank));
    }
    if (!is_kind(step_, StepKind::Matmul) && step_.lane_dim != kNoStickDim) {
      fail("only a Matmul step has a lane dimension");
    }
    if (!accumulates && table_of(step_) < 0 && step_.masks != 0) {
      fail("only Reduction, Matmul, Gather and Scatter steps have masks");
    }
    if (!is_kind(step_, StepKind::Pointwise) && (step_.flags & (kChained | kDiscarded)) != 0) {
      fail("only Pointwise steps are chained or discarded");
    }
  }

  // Every core collects as many parts as it has owners.
  void check_relayout() const {
    const OperandRecord& from = operand(0);
    const OperandRecord& to = operand(1);
    if (!is_owned(from)) fail_operand(0, "a Ring step reads the scratchpads of the cores it names");
    if (!is_in_lx(to)) fail_operand(1, "a Ring step writes to LX");
    if (lanes_of(from) != Lanes::Vector || lanes_of(to) != Lanes::Vector ||
        from.format != to.format) {
      fail("a Ring step copies whole sticks of one format");
    }
    if (step_.ring == 0) fail("a Ring step that names no owners");
    const int cores = std::popcount(step_.cores);
    check_range("operand", step_.first_operand, "owners", from.symbol,
                static_cast<uint64_t>(cores) * step_.ring, program_.bases.size());
    for (int slot = 0; slot < cores; ++slot) {
      Wide parts = 1;
      for (int dim = 0; dim < step_.rank; ++dim) {
        if (!is_reduced(step_, dim)) continue;
        parts *= extent_at(program_, step_, slot, dim);
        if (parts > step_.ring) break;
      }
      if (parts != step_.ring) {
        fail("the parts of a core's slice are not as many as its " + std::to_string(step_.ring) +
             " owners");
      }
      for (const int64_t owner : owners_of(program_, step_, from, slot)) {
        if (owner < 0 || owner >= kCores) {
          fail_operand(0, "owner " + std::to_string(owner) + " is no core");
        }
      }
    }
    for (int dim = 0; dim < step_.rank; ++dim) {
      if (is_reduced(step_, dim)) check_stands_still(0, dim, "all owners have it at one address");
    }
  }

  // Partners walk the same results: only along what is accumulated may their parts differ.
  void check_ring() const {
    if (!is_kind(step_, StepKind::Reduction) && !is_kind(step_, StepKind::Matmul)) {
      fail("only Reduction and Matmul steps accumulate over a ring");
    }
    const int cores = std::popcount(step_.cores);
    if (step_.ring == 1 || cores % step_.ring != 0) {
      fail("rings of " + std::to_string(step_.ring) + " cores can't be made of its " +
           std::to_string(cores));
    }
    for (int slot = 0; slot < cores; ++slot) check_partner(slot, slot / step_.ring * step_.ring);
  }

  void check_partner(int slot, int first) const {
    for (int dim = 0; dim < step_.rank; ++dim) {
      const int64_t extent = extent_at(program_, step_, slot, dim);
      if (extent == 0) fail("a core of a ring has nothing to do");
      if (!is_reduced(step_, dim) && extent != extent_at(program_, step_, first, dim)) {
        fail("partners of a ring have different extents along dimension " + std::to_string(dim) +
             ", which is not accumulated");
      }
    }
    const bool keeps_stick = step_.stick_dim != kNoStickDim && !is_reduced(step_, step_.stick_dim);
    if (keeps_stick && is_tail_slot(slot) != is_tail_slot(first)) {
      fail("partners of a ring differ in whether they are tail cores");
    }
    for (int other = first; other < slot && is_device(operand(step_.inputs)); ++other) {
      if (is_same_place(slot, other) != is_same_place(0, 1)) {
        fail_operand(step_.inputs, "partners of a ring have one place for results, or all another");
      }
    }
  }

  // Do two cores have the same base of the result?
  bool is_same_place(int slot, int other) const {
    const OperandRecord& result = operand(step_.inputs);
    return base_at(program_, result, slot) == base_at(program_, result, other);
  }

  // Is the core of this slot among the tail cores?
  bool is_tail_slot(int slot) const {
    uint32_t cores = step_.cores;
    for (; slot > 0; --slot) cores &= cores - 1;  // without its first core
    return has_core(step_.tail_cores, std::countr_zero(cores));
  }

  // Which lanes each operand has, and whether it must be in memory.
  void check_operand_lanes() const {
    for (int i = 0; i < step_.inputs + step_.outputs; ++i) {
      const bool is_output = i >= step_.inputs;
      const Lanes lanes = lanes_of(operand(i));
      const bool is_element = wants_element(i);
      if (is_element && lanes != Lanes::Element) {
        fail_operand(i, "a Restickify or Argsort step, and an index, go element by element");
      }
      if (!is_element && lanes == Lanes::Element && !may_be_element()) {
        fail_operand(i, "a step of this kind does not go element by element");
      }
      if (is_output && lanes == Lanes::First && !is_kind(step_, StepKind::Reduction)) {
        fail_operand(i, "results fill whole sticks, but for those of Reductions");
      }
      if (is_owned(operand(i)) && !is_relayout(step_)) {
        fail_operand(i, "only a Ring step reads the scratchpads of other cores");
      }
      const bool is_count = is_kind(step_, StepKind::Reduction) && i == 1 && !is_output;
      if (!is_kind(step_, StepKind::Pointwise) && !is_count && !is_in_memory(operand(i))) {
        fail_operand(i, "only a Pointwise step computes with what is not in device memory or LX");
      }
    }
  }

  bool wants_element(int position) const {
    if (is_kind(step_, StepKind::Restickify) || is_kind(step_, StepKind::Argsort)) return true;
    return table_of(step_) >= 0 && position == kIndex;
  }
  bool may_be_element() const { return table_of(step_) >= 0 || is_kind(step_, StepKind::Scan); }

  void check_stands_still(int position, int dim, const char* why) const {
    if (is_walked(program_, step_, dim) && operand(position).stride[dim] != 0) {
      fail_operand(position, "stride " + std::to_string(operand(position).stride[dim]) +
                                 " of dimension " + std::to_string(dim) + ": " + why);
    }
  }

  void check_result_stands_still() const {
    for (int dim = 0; dim < step_.rank; ++dim) {
      if (is_reduced(step_, dim)) {
        check_stands_still(step_.inputs, dim, "the result of an accumulation stands still");
      }
    }
  }

  void check_reduction() const {
    const bool reduces_stick = step_.stick_dim != kNoStickDim && is_reduced(step_, step_.stick_dim);
    const Lanes wanted = reduces_stick ? Lanes::First : Lanes::Vector;
    if (lanes_of(operand(step_.inputs)) != wanted) {
      fail_operand(step_.inputs, reduces_stick
                                     ? "a Reduction of the stick dimension gives First lanes"
                                     : "a Reduction that keeps the stick dimension gives Vectors");
    }
    if (step_.inputs == 2) {
      const auto space = static_cast<Space>(operand(1).space);
      if (space != Space::Constant && space != Space::Scalar) {
        fail_operand(1, "the count of a mean is a constant or a scalar");
      }
    }
    check_result_stands_still();
  }

  void check_matmul() const {
    if (step_.stick_dim == kNoStickDim || is_reduced(step_, step_.stick_dim)) {
      fail("a Matmul has a stick dimension, which counts sticks of n and is not accumulated");
    }
    if (step_.lane_dim >= step_.rank || step_.reduced >> step_.lane_dim != 1) {
      fail("the lane dimension of a Matmul is the last one that is accumulated");
    }
    for (int i = 0; i < 3; ++i) {
      if (lanes_of(operand(i)) != Lanes::Vector) {
        fail_operand(i, "the operands of a Matmul are Vectors");
      }
    }
    const int lanes = elems_per_stick(format_of(operand(1)));
    for (const int other : {0, 2}) {
      if (elems_per_stick(format_of(operand(other))) > lanes) {
        fail_operand(other, "no operand of a Matmul has more elements per stick than the second");
      }
    }
    if (operand(0).tail_tiles != 0) {
      fail_operand(0, "along k a mask says which sticks count, not tail tiles");
    }
    if (static_cast<Opcode>(step_.opcode) == Opcode::batchmatmul_int8 &&
        format_of(operand(1)) != DataFormat::SENINT8) {
      fail_operand(1, "the second operand of batchmatmul_int8 is SENINT8");
    }
    check_row_stride();
    check_stands_still(0, step_.stick_dim, "the first operand of a Matmul stands still along n");
    check_result_stands_still();
  }

  void check_gather() const { check_rows("a Gather", "result", step_.inputs); }

  void check_scatter() const {
    if (std::popcount(step_.cores) != 1) {
      fail("a Scatter runs on one core, for its order decides the result");
    }
    check_rows("a Scatter", "source", 0);
  }

  // A table of which an index names rows, and what goes out of it or into it.
  void check_rows(const std::string& kind, const std::string& role, int other) const {
    const int table = table_of(step_);
    if (step_.masks != 1) fail(kind + " has one mask, the rows of its table");
    if (format_of(operand(kIndex)) != DataFormat::IEEE_INT32) {
      fail_operand(kIndex, "the index of " + kind + " is IEEE_INT32");
    }
    if (lanes_of(operand(table)) == Lanes::First) {
      fail_operand(table, "the table of " + kind + " is a Vector, or goes element by element");
    }
    if (lanes_of(operand(table)) != lanes_of(operand(other))) {
      fail_operand(other, "the " + role + " of " + kind + " has the lanes of its table");
    }
    const bool is_vector = lanes_of(operand(table)) == Lanes::Vector;
    if (is_vector &&
        elems_per_stick(format_of(operand(table))) < elems_per_stick(format_of(operand(other)))) {
      fail_operand(table, "the table of " + kind +
                              " has at least as many elements per stick as its " + role);
    }
    check_row_stride();
  }

  // The one dimension of an Argsort or Scan. That the result moves along it bounds its length.
  void check_along() const {
    const int dim = std::countr_zero(step_.reduced);
    if (is_walked(program_, step_, dim) && operand(step_.inputs).stride[dim] == 0) {
      fail_operand(step_.inputs, "it stands still along dimension " + std::to_string(dim) +
                                     ", along which the step goes");
    }
  }

  void check_positions() const {
    if (format_of(operand(step_.inputs)) != DataFormat::IEEE_INT32) {
      fail_operand(step_.inputs, "positions are IEEE_INT32");
    }
  }

  void check_scan() const {
    check_along();
    if (gives_positions(static_cast<Opcode>(step_.opcode))) check_positions();
    if (step_.stick_dim != kNoStickDim && is_reduced(step_, step_.stick_dim)) {
      fail("a Scan does not go along the stick dimension: its lanes stand for themselves");
    }
    const bool is_element = lanes_of(operand(1)) == Lanes::Element;
    if (lanes_of(operand(0)) == Lanes::First ||
        is_element != (lanes_of(operand(0)) == Lanes::Element)) {
      fail_operand(0, "the operands of a Scan are both Vectors, or both go element by element");
    }
  }

  // The operand whose `tile_stride` leads from row to row: B of a Matmul, or a table.
  void check_row_stride() const {
    const int position = is_kind(step_, StepKind::Matmul) ? 1 : table_of(step_);
    const OperandRecord& rows = operand(position);
    const int64_t unit =
        lanes_of(rows) == Lanes::Element ? element_bytes(format_of(rows)) : kStickBytes;
    if (rows.tile_stride % unit != 0) {
      fail_operand(position, "row stride " + std::to_string(rows.tile_stride) +
                                 " is no multiple of " + std::to_string(unit));
    }
  }

  const Program& program_;
  const size_t index_;
  const StepRecord& step_;
};

// ---- Masks -------------------------------------------------------------------------------------

void check_valid_length(const Program& program, size_t index, const MaskRecord& mask) {
  if (mask.is_symbol == 0) {
    check_range("mask", index, "extents", mask.valid, 1, program.extents.size());
    const int64_t valid = program.extents[mask.valid];
    if (valid < 0 || valid > kMaxExtent) {
      reject("mask", index, "valid length " + std::to_string(valid) + " is out of range");
    }
    return;
  }
  check_range("mask", index, "symbols", mask.valid, 1, program.symbols.size());
  if (program.symbols[mask.valid].kind != static_cast<uint8_t>(SymbolKind::Extent)) {
    reject("mask", index, "symbol " + std::to_string(mask.valid) + " is no extent");
  }
}

void check_mask(const Program& program, const StepRecord& step, size_t index) {
  const MaskRecord& mask = program.masks[index];
  if (mask.is_symbol > 1) reject("mask", index, "is_symbol must be 0 or 1");
  if (mask.padding != 0) reject("mask", index, "padding must be 0");
  const bool is_rows = table_of(step) >= 0;
  if (is_rows != (mask.dim == kNoStickDim)) {
    reject("mask", index,
           is_rows ? "the mask of a Gather or Scatter has no dimension"
                   : "only the mask of a Gather or Scatter has no dimension");
  }
  if (!is_rows && (mask.dim >= step.rank || !is_reduced(step, mask.dim))) {
    reject("mask", index, "dimension " + std::to_string(mask.dim) + " is not accumulated");
  }
  check_valid_length(program, index, mask);
  check_base_count("mask", index, mask.base_count, std::popcount(step.cores));
  check_range("mask", index, "bases", mask.base, mask.base_count, program.bases.size());
  for (uint32_t i = 0; i < mask.base_count; ++i) {
    const int64_t base = program.bases[mask.base + i];
    if (base < -kMaxExtent || base > kMaxExtent) {
      reject("mask", index, "base " + std::to_string(base) + " is out of range");
    }
  }
}

// ---- Chains ------------------------------------------------------------------------------------

// Do two operands of chained steps go through the same memory at the same iterations?
bool is_same_walk(const Program& program, const StepRecord& step, const OperandRecord& a,
                  const OperandRecord& b, int lanes) {
  if (a.format != b.format || a.lanes != b.lanes || a.tail_tiles != b.tail_tiles) return false;
  if (tiles_of(a, lanes) > 1 && a.tile_stride != b.tile_stride) return false;
  if (!std::equal(std::begin(a.loop_stride), std::end(a.loop_stride), b.loop_stride)) return false;
  for (int dim = 0; dim < step.rank; ++dim) {
    if (is_walked(program, step, dim) && a.stride[dim] != b.stride[dim]) return false;
  }
  for (int slot = 0; slot < std::popcount(step.cores); ++slot) {
    if (base_at(program, a, slot) != base_at(program, b, slot)) return false;
  }
  return true;
}

// Does an operand of each step reach the same byte on the same core? Symbols are taken to be bound
// to memory of their own.
bool can_meet(const Program& program, const StepRecord& first, const OperandRecord& a,
              const StepRecord& second, const OperandRecord& b, int lanes,
              std::span<const uint32_t> loops) {
  if (a.space != b.space || (is_device(a) && a.symbol != b.symbol)) return false;
  for (int core = 0; core < kCores; ++core) {
    if (!has_core(first.cores, core)) continue;
    if (iterations_of(program, first, core_slot(first.cores, core)) == 0) continue;
    const Reach left = reach_of(program, first, a, core, lanes, loops);
    const Reach right = reach_of(program, second, b, core, lanes, loops);
    if (left.first < right.end && right.first < left.end) return true;
  }
  return false;
}

bool have_same_extents(const Program& program, const StepRecord& a, const StepRecord& b) {
  if (a.rank != b.rank || a.extent_count != b.extent_count) return false;
  const auto* first = program.extents.data() + a.extent;
  return std::equal(first, first + static_cast<size_t>(a.extent_count) * a.rank,
                    program.extents.data() + b.extent);
}

// `later` runs block by block with `earlier`: what both touch, they touch at the same iteration.
void check_pair(const Program& program, size_t earlier, size_t later,
                std::span<const uint32_t> loops) {
  const StepRecord& first = program.steps[earlier];
  const StepRecord& second = program.steps[later];
  const int lanes = program.lanes[later];
  const auto left = operands_of(program, first);
  const auto right = operands_of(program, second);
  for (size_t i = 0; i < left.size(); ++i) {
    for (size_t k = 0; k < right.size(); ++k) {
      const bool is_written = i >= first.inputs || k >= second.inputs;
      if (!is_written || !is_in_memory(left[i]) || !is_in_memory(right[k])) continue;
      if (!can_meet(program, first, left[i], second, right[k], lanes, loops)) continue;
      if (is_same_walk(program, first, left[i], right[k], lanes)) continue;
      reject("operand", second.first_operand + k,
             "step " + std::to_string(later) + " is chained to step " + std::to_string(earlier) +
                 ", but meets its operand " + std::to_string(first.first_operand + i) +
                 " at another iteration");
    }
  }
}

}  // namespace

void check_kind_rules(const Program& program, size_t step) { KindRules(program, step).check(); }

void check_masks(const Program& program, size_t index) {
  const StepRecord& step = program.steps[index];
  check_range("step", index, "masks", step.first_mask, step.masks, program.masks.size());
  if (step.masks > kMaxMasks) {
    reject("step", index,
           std::to_string(step.masks) + " masks, the limit is " + std::to_string(kMaxMasks));
  }
  for (size_t i = 0; i < step.masks; ++i) {
    check_mask(program, step, step.first_mask + i);
    for (size_t k = 0; k < i; ++k) {
      if (program.masks[step.first_mask + i].dim == program.masks[step.first_mask + k].dim) {
        reject("mask", step.first_mask + i, "its dimension has another mask");
      }
    }
  }
}

void check_mask_loops(const Program& program, size_t step, std::span<const uint32_t> loops) {
  const uint32_t first = program.steps[step].first_mask;
  for (size_t i = first; i < first + size_t{program.steps[step].masks}; ++i) {
    for (size_t depth = 0; depth < kLoopDepth; ++depth) {
      const int64_t stride = program.masks[i].loop_stride[depth];
      if (depth >= loops.size() && stride != 0) {
        reject("mask", i,
               "loop stride " + std::to_string(depth) + ", but only " +
                   std::to_string(loops.size()) + " loops enclose the step");
      }
      const Wide way = depth < loops.size() ? static_cast<Wide>(stride) * loops[depth] : 0;
      if (way > kMaxMaskWay || way < -kMaxMaskWay) {
        reject("mask", i, "loop stride " + std::to_string(stride) + " is out of range");
      }
    }
  }
}

void check_chained(const Program& program, size_t index, std::span<const uint32_t> chain,
                   std::span<const uint32_t> loops) {
  const StepRecord& step = program.steps[index];
  if (chain.empty()) reject("step", index, "it is chained, but follows no Pointwise step");
  if ((step.flags & kBarrierBefore) != 0) {
    reject("step", index, "it is chained, so it can't wait for a barrier");
  }
  const StepRecord& before = program.steps[chain.back()];
  if (step.cores != before.cores || step.stick_dim != before.stick_dim ||
      step.tail_cores != before.tail_cores || program.lanes[index] != program.lanes[chain.back()] ||
      !have_same_extents(program, step, before)) {
    reject("step", index,
           "it is chained to step " + std::to_string(chain.back()) +
               ", which has other cores, extents, lanes or another stick dimension");
  }
  for (const uint32_t earlier : chain) check_pair(program, earlier, index, loops);
}

}  // namespace spyre
