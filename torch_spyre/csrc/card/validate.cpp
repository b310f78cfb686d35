#include "validate.h"

#include <algorithm>
#include <array>
#include <string>

#include "rejection.h"
#include "validate_kinds.h"
#include "walk.h"

namespace spyre {
namespace {

constexpr int64_t kMaxIterations = int64_t{1} << 36;
constexpr int64_t kMaxSymbolBytes = int64_t{1} << 40;
constexpr std::array<const char*, kStepKinds> kKindNames{"Pointwise", "Restickify", "Reduction",
                                                         "Matmul",    "Gather",     "Ring",
                                                         "Scatter",   "Argsort",    "Scan"};
static_assert(static_cast<int>(StepKind::Scan) == kStepKinds - 1);

// Which operations a kind of step executes.
bool can_execute(StepKind kind, uint16_t opcode) {
  const OpcodeGroup group = opcode_group(opcode);
  switch (kind) {
    case StepKind::Pointwise:
      return group == OpcodeGroup::Pointwise;
    case StepKind::Restickify:
    case StepKind::Ring:
      return opcode == static_cast<uint16_t>(Opcode::identity) ||
             opcode == static_cast<uint16_t>(Opcode::identity_int);
    case StepKind::Reduction:
      return group == OpcodeGroup::Reduction;
    case StepKind::Matmul:
      return group == OpcodeGroup::Matmul;
    case StepKind::Gather:
      return group == OpcodeGroup::Gather;
    case StepKind::Scatter:
      return group == OpcodeGroup::Scatter;
    case StepKind::Argsort:
      return group == OpcodeGroup::Argsort;
    case StepKind::Scan:
      return group == OpcodeGroup::Scan;
  }
  return false;
}

class Validator {
 public:
  explicit Validator(Program& program) : program_(program) {}

  void run() {
    for (size_t i = 0; i < program_.symbols.size(); ++i) check_symbol(i);
    for (size_t i = 0; i < program_.steps.size(); ++i) check_step(i);
    program_.barrier.assign(program_.nodes.size(), 0);
    is_used_.assign(program_.steps.size(), false);
    if (program_.nodes.empty()) {
      throw ProgramError("card program rejected: it has no nodes, so it would do nothing");
    }
    check_nodes(0, program_.nodes.size());
    const auto unused = std::find(is_used_.begin(), is_used_.end(), false);
    if (unused != is_used_.end()) {
      reject("step", unused - is_used_.begin(), "no node executes it");
    }
  }

 private:
  // ---- Symbols ---------------------------------------------------------------------------------

  void check_symbol(size_t index) {
    const SymbolRecord& symbol = program_.symbols[index];
    if (symbol.kind > static_cast<uint8_t>(SymbolKind::Extent)) {
      reject("symbol", index, "unknown kind " + std::to_string(symbol.kind));
    }
    if (!is_valid_format(symbol.format)) {
      reject("symbol", index, "unknown format " + std::to_string(symbol.format));
    }
    if (symbol.is_written > 1) reject("symbol", index, "is_written must be 0 or 1");
    if (std::any_of(std::begin(symbol.reserved), std::end(symbol.reserved),
                    [](uint8_t byte) { return byte != 0; })) {
      reject("symbol", index, "reserved bytes must be 0");
    }
    if (symbol.kind == static_cast<uint8_t>(SymbolKind::Extent) &&
        symbol.format != static_cast<uint8_t>(DataFormat::IEEE_INT32)) {
      reject("symbol", index, "an extent is IEEE_INT32");
    }
    if (symbol.bytes < 0 || symbol.bytes > kMaxSymbolBytes) {
      reject("symbol", index, "size " + std::to_string(symbol.bytes) + " is out of range");
    }
  }

  // ---- Steps: what holds wherever in the tree a step stands ------------------------------------

  void check_step(size_t index) {
    const StepRecord& step = program_.steps[index];
    check_kind(index, step);
    if (step.rank > kStepRank) {
      reject("step", index,
             "rank " + std::to_string(step.rank) + " is above " + std::to_string(kStepRank));
    }
    if (step.cores == 0) reject("step", index, "no core takes part");
    if ((step.flags & ~uint32_t{kBarrierBefore | kChained | kDiscarded}) != 0) {
      reject("step", index, "unknown flags");
    }
    if (step.padding != 0) reject("step", index, "padding must be 0");
    if (step.stick_dim != kNoStickDim && step.stick_dim >= step.rank) {
      reject("step", index,
             "stick dimension " + std::to_string(step.stick_dim) + " is not among its " +
                 std::to_string(step.rank));
    }
    if ((step.tail_cores & ~step.cores) != 0) {
      reject("step", index, "a tail core does not take part");
    }
    if (step.tail_cores != 0 && step.stick_dim == kNoStickDim) {
      reject("step", index, "it has tail cores but no stick dimension");
    }
    check_extents(index, step);
    check_range("step", index, "operands", step.first_operand,
                static_cast<uint64_t>(step.inputs) + step.outputs, program_.operands.size());
    for (int i = 0; i < step.inputs + step.outputs; ++i) check_operand(index, step, i);
    check_kind_rules(program_, index);
    check_masks(program_, index);
    program_.lanes.push_back(lanes_per_iteration(program_, step));
    check_tiles(index, step, program_.lanes.back());
  }

  void check_kind(size_t index, const StepRecord& step) {
    if (step.kind >= kKindNames.size()) {
      reject("step", index, "unknown kind " + std::to_string(step.kind));
    }
    const OpcodeInfo& opcode = opcode_info(step.opcode);
    if (opcode.name.empty()) {
      reject("step", index, "unknown opcode " + std::to_string(step.opcode));
    }
    if (!can_execute(static_cast<StepKind>(step.kind), step.opcode)) {
      reject("step", index,
             std::string("the opcode of a ") + kKindNames[step.kind] + " step can't be " +
                 std::string(opcode.name));
    }
    if (step.inputs != opcode.inputs || step.outputs != 1) {
      reject("step", index,
             std::string(opcode.name) + " takes " + std::to_string(opcode.inputs) +
                 " inputs and gives 1 output, not " + std::to_string(step.inputs) + " and " +
                 std::to_string(step.outputs));
    }
  }

  void check_extents(size_t index, const StepRecord& step) {
    const uint32_t cores = std::popcount(step.cores);
    if (step.extent_count != 1 && step.extent_count != cores) {
      reject("step", index,
             std::to_string(step.extent_count) + " rows of extents for " + std::to_string(cores) +
                 " cores: must be 1 or a row per core");
    }
    const uint64_t count = static_cast<uint64_t>(step.extent_count) * step.rank;
    check_range("step", index, "extents", step.extent, count, program_.extents.size());
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t extent = program_.extents[step.extent + i];
      if (extent < 0 || extent > kMaxExtent) {
        reject("step", index, "extent " + std::to_string(extent) + " is out of range");
      }
    }
  }

  // ---- Operands --------------------------------------------------------------------------------

  void check_operand(size_t step_index, const StepRecord& step, int position) {
    const size_t index = step.first_operand + position;
    const OperandRecord& operand = program_.operands[index];
    const bool is_output = position >= step.inputs;
    if (operand.space > static_cast<uint8_t>(Space::Ring)) {
      reject("operand", index, "unknown space " + std::to_string(operand.space));
    }
    if (operand.lanes > static_cast<uint8_t>(Lanes::Element)) {
      reject("operand", index, "unknown lanes " + std::to_string(operand.lanes));
    }
    check_format(step_index, step, position, index, operand);
    if (is_output && (!is_in_memory(operand) || is_owned(operand))) {
      reject("operand", index, "results go to device memory or LX");
    }
    check_symbol_of(index, operand, is_output);
    if (is_in_memory(operand) || operand.space == static_cast<uint8_t>(Space::Iota)) {
      check_base_count("operand", index, operand.base_count, std::popcount(step.cores));
      check_range("operand", index, "bases", operand.base, operand.base_count,
                  program_.bases.size());
      if (is_in_memory(operand)) check_alignment(index, step, operand);
    }
  }

  void check_format(size_t step_index, const StepRecord& step, int position, size_t index,
                    const OperandRecord& operand) {
    const FormatInfo& format = format_info(format_of(operand));
    if (!is_valid_format(operand.format) || !format.is_computable ||
        element_bytes(format_of(operand)) == 0) {
      reject("operand", index,
             "format " + std::to_string(operand.format) + " (" + std::string(format.name) +
                 ") can't be computed with");
    }
    const OpcodeInfo& opcode = opcode_info(step.opcode);
    // "FF:F": the result's letter follows the colon.
    const char wanted = opcode.signature[position < step.inputs ? position : position + 1];
    if ((format.domain == Domain::Float ? 'F' : 'I') != wanted) {
      reject("operand", index,
             std::string(format.name) + " where step " + std::to_string(step_index) + " (" +
                 std::string(opcode.name) + ", " + std::string(opcode.signature) + ") wants " +
                 (wanted == 'F' ? "a float" : "an integer") + " format");
    }
    if (operand.space == static_cast<uint8_t>(Space::Iota) &&
        format_of(operand) != DataFormat::IEEE_INT32) {
      reject("operand", index, "Iota counts in IEEE_INT32");
    }
  }

  void check_symbol_of(size_t index, const OperandRecord& operand, bool is_output) {
    const Space space = static_cast<Space>(operand.space);
    if (space == Space::Constant) {
      check_range("operand", index, "constants", operand.symbol, 1, program_.constants.size());
    }
    if (space != Space::Device && space != Space::Scalar) return;
    check_range("operand", index, "symbols", operand.symbol, 1, program_.symbols.size());
    const SymbolRecord& symbol = program_.symbols[operand.symbol];
    const SymbolKind wanted = space == Space::Device ? SymbolKind::Address : SymbolKind::Scalar;
    if (symbol.kind != static_cast<uint8_t>(wanted)) {
      reject("operand", index,
             "symbol " + std::to_string(operand.symbol) + " is no " +
                 (space == Space::Device ? "address" : "scalar"));
    }
    if (space == Space::Scalar && format_info(static_cast<DataFormat>(symbol.format)).domain !=
                                      format_info(format_of(operand)).domain) {
      reject("operand", index,
             "symbol " + std::to_string(operand.symbol) +
                 " is a scalar of the other domain (float or integer)");
    }
    if (is_output && symbol.is_written == 0) {
      reject("operand", index,
             "it writes symbol " + std::to_string(operand.symbol) +
                 ", which is not declared as written");
    }
  }

  // Bases and the strides of dimensions that are walked; loop strides are checked with the loops.
  void check_alignment(size_t index, const StepRecord& step, const OperandRecord& operand) {
    const int64_t unit = alignment(operand);
    for (uint32_t i = 0; i < operand.base_count; ++i) {
      if (program_.bases[operand.base + i] % unit != 0) {
        misaligned(index, "base", program_.bases[operand.base + i], unit);
      }
    }
    for (int dim = 0; dim < kStepRank; ++dim) {
      if (dim >= step.rank && operand.stride[dim] != 0) {
        reject("operand", index,
               "stride of dimension " + std::to_string(dim) + ", which the step does not have");
      }
      if (dim < step.rank && operand.stride[dim] % unit != 0 && is_walked(program_, step, dim)) {
        misaligned(index, "stride", operand.stride[dim], unit);
      }
    }
  }

  void check_tiles(size_t index, const StepRecord& step, int lanes) {
    for (int i = 0; i < step.inputs + step.outputs; ++i) {
      const size_t entry = step.first_operand + i;
      const OperandRecord& operand = program_.operands[entry];
      const int tiles = tiles_of(operand, lanes);
      if (operand.tail_tiles > tiles) {
        reject("operand", entry,
               std::to_string(operand.tail_tiles) + " tail tiles, but step " +
                   std::to_string(index) + " takes only " + std::to_string(tiles) +
                   " per iteration");
      }
      if (is_in_memory(operand) && tiles > 1 && operand.tile_stride % kStickBytes != 0) {
        misaligned(entry, "tile stride", operand.tile_stride, kStickBytes);
      }
    }
  }

  // ---- The tree --------------------------------------------------------------------------------

  // Returns whether a barrier is needed somewhere in nodes [begin, end).
  bool check_nodes(size_t begin, size_t end) {
    bool has_barrier = false;
    std::vector<uint32_t> chain;  // steps that end at the node before and run block by block
    for (size_t i = begin; i < end;) {
      const NodeRecord& node = program_.nodes[i];
      size_t next = i + 1;
      bool barrier = false;
      if (node.kind == static_cast<uint32_t>(NodeKind::Step)) {
        barrier = check_visit(i, node);
        check_chain(node.step, chain);
      } else if (node.kind == static_cast<uint32_t>(NodeKind::Loop)) {
        if (node.size == 0) reject("node", i, "a loop without a body");
        if (node.size > end - next) {
          reject("node", i,
                 "a body of " + std::to_string(node.size) + " nodes, " +
                     std::to_string(end - next) + " are left");
        }
        if (node.count == 0) reject("node", i, "a loop that runs 0 times");
        if (depth_ == kLoopDepth) {
          reject("node", i, "loops nest deeper than " + std::to_string(kLoopDepth));
        }
        check_unbroken(chain);
        chain.clear();
        next += node.size;
        loops_[depth_++] = node.count;
        barrier = check_nodes(i + 1, next);
        --depth_;
      } else {
        reject("node", i, "unknown kind " + std::to_string(node.kind));
      }
      program_.barrier[i] = barrier ? 1 : 0;
      has_barrier |= barrier;
      i = next;
    }
    check_unbroken(chain);
    return has_barrier;
  }

  // Adds the step of the next node to the chain, or begins another.
  void check_chain(uint32_t step, std::vector<uint32_t>& chain) {
    const StepRecord& record = program_.steps[step];
    if ((record.flags & kChained) != 0) {
      check_chained(program_, step, chain, {loops_.data(), depth_});
    } else {
      check_unbroken(chain);
      chain.clear();
    }
    if (is_kind(record, StepKind::Pointwise)) chain.push_back(step);
    const OperandRecord& result = program_.operands[record.first_operand + record.inputs];
    if ((record.flags & kDiscarded) != 0 && is_device(result)) {
      reject("step", step, "its result is discarded, but goes to device memory");
    }
  }

  // The last step of a chain has no reader in it, so its result must be stored.
  void check_unbroken(const std::vector<uint32_t>& chain) const {
    if (!chain.empty() && (program_.steps[chain.back()].flags & kDiscarded) != 0) {
      reject("step", chain.back(), "its result is discarded, but no step is chained to it");
    }
  }

  // A step at one place in the tree: with the enclosing loops its addresses are known.
  bool check_visit(size_t node_index, const NodeRecord& node) {
    if (node.step >= program_.steps.size()) {
      reject("node", node_index, "there is no step " + std::to_string(node.step));
    }
    is_used_[node.step] = true;
    const StepRecord& step = program_.steps[node.step];
    const std::span<const uint32_t> loops(loops_.data(), depth_);
    count_work(node_index, step, program_.lanes[node.step]);
    check_mask_loops(program_, node.step, loops);
    for (int i = 0; i < step.inputs + step.outputs; ++i) {
      const size_t index = step.first_operand + i;
      const OperandRecord& operand = program_.operands[index];
      check_loop_strides(index, operand);
      if (!is_in_memory(operand)) continue;
      for (int core = 0; core < kCores; ++core) {
        if (!works(step, core)) continue;
        check_reach(index, step, operand, core, program_.lanes[node.step], loops);
      }
    }
    if (is_relayout(step)) check_owners_stand_still(step, program_.lanes[node.step], loops);
    return (step.flags & kBarrierBefore) != 0;
  }

  // What a Ring step reads, none of its cores may write at the same time.
  void check_owners_stand_still(const StepRecord& step, int lanes,
                                std::span<const uint32_t> loops) {
    const auto operands = operands_of(program_, step);
    std::array<Reach, kCores> written{};
    for (int core = 0; core < kCores; ++core) {
      if (works(step, core)) {
        written[core] = reach_of(program_, step, operands[1], core, lanes, loops);
      }
    }
    for (int core = 0; core < kCores; ++core) {
      if (!works(step, core)) continue;
      const Reach read = reach_of(program_, step, operands[0], core, lanes, loops);
      for (const int64_t owner :
           owners_of(program_, step, operands[0], core_slot(step.cores, core))) {
        const Reach& other = written[owner];
        if (read.first < other.end && other.first < read.end) {
          reject("operand", step.first_operand,
                 "core " + std::to_string(core) + " reads LX of core " + std::to_string(owner) +
                     " where that core writes in the same step");
        }
      }
    }
  }

  bool works(const StepRecord& step, int core) const {
    return has_core(step.cores, core) &&
           iterations_of(program_, step, core_slot(step.cores, core)) != 0;
  }

  void check_loop_strides(size_t index, const OperandRecord& operand) {
    for (size_t depth = 0; depth < kLoopDepth; ++depth) {
      const int64_t stride = operand.loop_stride[depth];
      if (depth >= depth_ && stride != 0) {
        reject("operand", index,
               "loop stride " + std::to_string(depth) + ", but only " + std::to_string(depth_) +
                   " loops enclose the step");
      }
      if (is_in_memory(operand) && stride % alignment(operand) != 0) {
        misaligned(index, "loop stride", stride, alignment(operand));
      }
    }
  }

  void check_reach(size_t index, const StepRecord& step, const OperandRecord& operand, int core,
                   int lanes, std::span<const uint32_t> loops) {
    const Reach one = span_of(program_, step, operand, core, lanes, loops);
    const Reach all = reach_of(program_, step, operand, core, lanes, loops);
    const bool device = is_device(operand);
    const int64_t limit = device ? program_.symbols[operand.symbol].bytes : kLxBytes - kLxReserved;
    if (all.first < 0 || all.end > limit) {
      reject("operand", index,
             "core " + std::to_string(core) + " reaches bytes " + text(all.first) + " to " +
                 text(all.end) + " of " +
                 (device ? "symbol " + std::to_string(operand.symbol) + ", which has "
                         : "LX, which has ") +
                 std::to_string(limit));
    }
    if (device && one.end - one.first > kSpanBytes) {
      reject("operand", index,
             "core " + std::to_string(core) + " spans " + text(one.end - one.first) +
                 " bytes of a tensor, above the " + std::to_string(kSpanBytes) + " it can address");
    }
    const auto use_lx = [&](int64_t owner) {
      program_.lx_high_water[owner] =
          std::max(program_.lx_high_water[owner], static_cast<int64_t>(all.end));
    };
    if (is_owned(operand)) {
      const auto owners = owners_of(program_, step, operand, core_slot(step.cores, core));
      std::for_each(owners.begin(), owners.end(), use_lx);
    } else if (!device) {
      use_lx(core);
    }
  }

  void count_work(size_t node_index, const StepRecord& step, int lanes) {
    Wide iterations = 0;
    for (int slot = 0; slot < std::popcount(step.cores); ++slot) {
      iterations += std::max<int64_t>(1, iterations_of(program_, step, slot));
    }
    for (size_t depth = 0; depth < depth_; ++depth) {
      iterations = std::min<Wide>(iterations, kManyIterations) * loops_[depth];
    }
    iterations_ += iterations;
    if (iterations_ > kMaxIterations) {
      reject("node", node_index,
             "the program makes " + text(iterations_) + " iterations up to here, more than the " +
                 std::to_string(kMaxIterations) + " allowed");
    }
    // A Matmul makes `lanes` multiply-adds for each element, some 16 at a time.
    const int weight = is_kind(step, StepKind::Matmul) ? std::max(1, lanes / 16) : 1;
    program_.work += static_cast<int64_t>(iterations) * lanes * weight;
  }

  // ---- Helpers ---------------------------------------------------------------------------------

  static int64_t alignment(const OperandRecord& operand) {
    return lanes_of(operand) == Lanes::Element ? element_bytes(format_of(operand)) : kStickBytes;
  }

  [[noreturn]] static void misaligned(size_t index, const char* what, int64_t value, int64_t unit) {
    reject("operand", index,
           std::string(what) + " " + std::to_string(value) + " is no multiple of " +
               std::to_string(unit));
  }

  Program& program_;
  std::array<uint32_t, kLoopDepth> loops_{};
  size_t depth_ = 0;
  std::vector<bool> is_used_;
  Wide iterations_ = 0;
};

}  // namespace

void validate(Program& program) { Validator(program).run(); }

}  // namespace spyre
