#include "validate.h"

#include <algorithm>
#include <array>
#include <string>

#include "walk.h"

namespace spyre {
namespace {

constexpr int64_t kMaxIterations = int64_t{1} << 36;
constexpr int64_t kMaxExtent = int64_t{1} << 40;
constexpr int64_t kMaxSymbolBytes = int64_t{1} << 40;
constexpr std::array<const char*, 6> kStepKinds{"Pointwise", "Restickify", "Reduction",
                                                "Matmul",    "Gather",     "Ring"};
static_assert(static_cast<int>(StepKind::Ring) == 5);

[[noreturn]] void fail(const char* table, size_t entry, const std::string& reason) {
  throw ProgramError(std::string("card program rejected: ") + table + " " + std::to_string(entry) +
                     ": " + reason);
}

std::string text(Wide value) {
  constexpr Wide kLimit = int64_t{1} << 62;
  if (value > kLimit) return "more than 2^62";
  if (value < -kLimit) return "less than -2^62";
  return std::to_string(static_cast<int64_t>(value));
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
      fail("step", unused - is_used_.begin(), "no node executes it");
    }
  }

 private:
  // ---- Symbols ---------------------------------------------------------------------------------

  void check_symbol(size_t index) {
    const SymbolRecord& symbol = program_.symbols[index];
    if (symbol.kind > static_cast<uint8_t>(SymbolKind::Extent)) {
      fail("symbol", index, "unknown kind " + std::to_string(symbol.kind));
    }
    if (!is_valid_format(symbol.format)) {
      fail("symbol", index, "unknown format " + std::to_string(symbol.format));
    }
    if (symbol.is_written > 1) fail("symbol", index, "is_written must be 0 or 1");
    if (std::any_of(std::begin(symbol.reserved), std::end(symbol.reserved),
                    [](uint8_t byte) { return byte != 0; })) {
      fail("symbol", index, "reserved bytes must be 0");
    }
    if (symbol.bytes < 0 || symbol.bytes > kMaxSymbolBytes) {
      fail("symbol", index, "size " + std::to_string(symbol.bytes) + " is out of range");
    }
  }

  // ---- Steps: what holds wherever in the tree a step stands ------------------------------------

  void check_step(size_t index) {
    const StepRecord& step = program_.steps[index];
    check_kind(index, step);
    if (step.rank > kStepRank) {
      fail("step", index,
           "rank " + std::to_string(step.rank) + " is above " + std::to_string(kStepRank));
    }
    if (step.cores == 0) fail("step", index, "no core takes part");
    if ((step.flags & ~uint32_t{kBarrierBefore}) != 0) fail("step", index, "unknown flags");
    if (step.reserved != 0) fail("step", index, "reserved byte must be 0");
    if (step.stick_dim != kNoStickDim && step.stick_dim >= step.rank) {
      fail("step", index,
           "stick dimension " + std::to_string(step.stick_dim) + " is not among its " +
               std::to_string(step.rank));
    }
    if ((step.tail_cores & ~step.cores) != 0) {
      fail("step", index, "a tail core does not take part");
    }
    if (step.tail_cores != 0 && step.stick_dim == kNoStickDim) {
      fail("step", index, "it has tail cores but no stick dimension");
    }
    check_extents(index, step);
    check_range("step", index, "operands", step.first_operand,
                static_cast<uint64_t>(step.inputs) + step.outputs, program_.operands.size());
    for (int i = 0; i < step.inputs + step.outputs; ++i) check_operand(index, step, i);
    program_.lanes.push_back(lanes_per_iteration(program_, step));
    check_tiles(index, step, program_.lanes.back());
  }

  void check_kind(size_t index, const StepRecord& step) {
    if (step.kind >= kStepKinds.size()) {
      fail("step", index, "unknown kind " + std::to_string(step.kind));
    }
    if (step.kind > static_cast<uint8_t>(StepKind::Restickify)) {
      fail("step", index,
           std::string(kStepKinds[step.kind]) +
               " steps are not executed by this version of the card");
    }
    const OpcodeInfo& opcode = opcode_info(step.opcode);
    if (opcode.name.empty()) {
      fail("step", index, "unknown opcode " + std::to_string(step.opcode));
    }
    if (is_restickify(step) && step.opcode != static_cast<uint16_t>(Opcode::identity) &&
        step.opcode != static_cast<uint16_t>(Opcode::identity_int)) {
      fail("step", index,
           "a Restickify step moves elements, its opcode can't be " + std::string(opcode.name));
    }
    if (step.inputs != opcode.inputs || step.outputs != 1) {
      fail("step", index,
           std::string(opcode.name) + " takes " + std::to_string(opcode.inputs) +
               " inputs and gives 1 output, not " + std::to_string(step.inputs) + " and " +
               std::to_string(step.outputs));
    }
  }

  void check_extents(size_t index, const StepRecord& step) {
    const uint32_t cores = std::popcount(step.cores);
    if (step.extent_count != 1 && step.extent_count != cores) {
      fail("step", index,
           std::to_string(step.extent_count) + " rows of extents for " + std::to_string(cores) +
               " cores: must be 1 or a row per core");
    }
    const uint64_t count = static_cast<uint64_t>(step.extent_count) * step.rank;
    check_range("step", index, "extents", step.extent, count, program_.extents.size());
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t extent = program_.extents[step.extent + i];
      if (extent < 0 || extent > kMaxExtent) {
        fail("step", index, "extent " + std::to_string(extent) + " is out of range");
      }
    }
  }

  // ---- Operands --------------------------------------------------------------------------------

  void check_operand(size_t step_index, const StepRecord& step, int position) {
    const size_t index = step.first_operand + position;
    const OperandRecord& operand = program_.operands[index];
    const bool is_output = position >= step.inputs;
    if (operand.space > static_cast<uint8_t>(Space::Iota)) {
      fail("operand", index, "unknown space " + std::to_string(operand.space));
    }
    if (operand.lanes > static_cast<uint8_t>(Lanes::Element)) {
      fail("operand", index, "unknown lanes " + std::to_string(operand.lanes));
    }
    check_format(step_index, step, position, index, operand);
    const Lanes lanes = lanes_of(operand);
    if (is_restickify(step) != (lanes == Lanes::Element)) {
      fail("operand", index,
           is_restickify(step) ? "a Restickify step goes element by element"
                               : "only a Restickify step goes element by element");
    }
    if (is_restickify(step) && !is_in_memory(operand)) {
      fail("operand", index, "a Restickify step moves between device memory and LX only");
    }
    if (is_output && !is_in_memory(operand)) {
      fail("operand", index, "results go to device memory or LX");
    }
    if (is_output && lanes == Lanes::First) fail("operand", index, "results fill whole sticks");
    check_symbol_of(index, operand, is_output);
    if (is_in_memory(operand) || operand.space == static_cast<uint8_t>(Space::Iota)) {
      const uint32_t cores = std::popcount(step.cores);
      if (operand.base_count != 1 && operand.base_count != cores) {
        fail("operand", index,
             std::to_string(operand.base_count) + " bases for " + std::to_string(cores) +
                 " cores: must be 1 or one per core");
      }
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
      fail("operand", index,
           "format " + std::to_string(operand.format) + " (" + std::string(format.name) +
               ") can't be computed with");
    }
    const OpcodeInfo& opcode = opcode_info(step.opcode);
    // "FF:F": the result's letter follows the colon.
    const char wanted = opcode.signature[position < step.inputs ? position : position + 1];
    if ((format.domain == Domain::Float ? 'F' : 'I') != wanted) {
      fail("operand", index,
           std::string(format.name) + " where step " + std::to_string(step_index) + " (" +
               std::string(opcode.name) + ", " + std::string(opcode.signature) + ") wants " +
               (wanted == 'F' ? "a float" : "an integer") + " format");
    }
    if (operand.space == static_cast<uint8_t>(Space::Iota) &&
        format_of(operand) != DataFormat::IEEE_INT32) {
      fail("operand", index, "Iota counts in IEEE_INT32");
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
      fail("operand", index,
           "symbol " + std::to_string(operand.symbol) + " is no " +
               (space == Space::Device ? "address" : "scalar"));
    }
    if (space == Space::Scalar && format_info(static_cast<DataFormat>(symbol.format)).domain !=
                                      format_info(format_of(operand)).domain) {
      fail("operand", index,
           "symbol " + std::to_string(operand.symbol) +
               " is a scalar of the other domain (float or integer)");
    }
    if (is_output && symbol.is_written == 0) {
      fail("operand", index,
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
    const int rows = static_cast<int>(step.extent_count);
    for (int dim = 0; dim < kStepRank; ++dim) {
      if (dim >= step.rank && operand.stride[dim] != 0) {
        fail("operand", index,
             "stride of dimension " + std::to_string(dim) + ", which the step does not have");
      }
      bool is_walked = false;
      for (int row = 0; dim < step.rank && row < rows; ++row) {
        is_walked |= extent_at(program_, step, row, dim) > 1;
      }
      if (is_walked && operand.stride[dim] % unit != 0) {
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
        fail("operand", entry,
             std::to_string(operand.tail_tiles) + " tail tiles, but step " + std::to_string(index) +
                 " takes only " + std::to_string(tiles) + " per iteration");
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
    for (size_t i = begin; i < end;) {
      const NodeRecord& node = program_.nodes[i];
      size_t next = i + 1;
      bool barrier = false;
      if (node.kind == static_cast<uint32_t>(NodeKind::Step)) {
        barrier = check_visit(i, node);
      } else if (node.kind == static_cast<uint32_t>(NodeKind::Loop)) {
        if (node.size == 0) fail("node", i, "a loop without a body");
        if (node.size > end - next) {
          fail("node", i,
               "a body of " + std::to_string(node.size) + " nodes, " + std::to_string(end - next) +
                   " are left");
        }
        if (node.count == 0) fail("node", i, "a loop that runs 0 times");
        if (depth_ == kLoopDepth) {
          fail("node", i, "loops nest deeper than " + std::to_string(kLoopDepth));
        }
        next += node.size;
        loops_[depth_++] = node.count;
        barrier = check_nodes(i + 1, next);
        --depth_;
      } else {
        fail("node", i, "unknown kind " + std::to_string(node.kind));
      }
      program_.barrier[i] = barrier ? 1 : 0;
      has_barrier |= barrier;
      i = next;
    }
    return has_barrier;
  }

  // A step at one place in the tree: with the enclosing loops its addresses are known.
  bool check_visit(size_t node_index, const NodeRecord& node) {
    if (node.step >= program_.steps.size()) {
      fail("node", node_index, "there is no step " + std::to_string(node.step));
    }
    is_used_[node.step] = true;
    const StepRecord& step = program_.steps[node.step];
    const std::span<const uint32_t> loops(loops_.data(), depth_);
    count_work(node_index, step, program_.lanes[node.step]);
    for (int i = 0; i < step.inputs + step.outputs; ++i) {
      const size_t index = step.first_operand + i;
      const OperandRecord& operand = program_.operands[index];
      check_loop_strides(index, operand);
      if (!is_in_memory(operand)) continue;
      for (int core = 0; core < kCores; ++core) {
        if (!has_core(step.cores, core)) continue;
        if (iterations_of(program_, step, core_slot(step.cores, core)) == 0) continue;
        check_reach(index, step, operand, core, program_.lanes[node.step], loops);
      }
    }
    return (step.flags & kBarrierBefore) != 0;
  }

  void check_loop_strides(size_t index, const OperandRecord& operand) {
    for (size_t depth = 0; depth < kLoopDepth; ++depth) {
      const int64_t stride = operand.loop_stride[depth];
      if (depth >= depth_ && stride != 0) {
        fail("operand", index,
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
    const Reach one = reach_of(program_, step, operand, core, lanes);
    const Reach all = reach_of(program_, step, operand, core, lanes, loops);
    const bool device = is_device(operand);
    const int64_t limit = device ? program_.symbols[operand.symbol].bytes : kLxBytes - kLxReserved;
    if (all.first < 0 || all.end > limit) {
      fail("operand", index,
           "core " + std::to_string(core) + " reaches bytes " + text(all.first) + " to " +
               text(all.end) + " of " +
               (device ? "symbol " + std::to_string(operand.symbol) + ", which has "
                       : "LX, which has ") +
               std::to_string(limit));
    }
    if (device && one.end - one.first > kSpanBytes) {
      fail("operand", index,
           "core " + std::to_string(core) + " spans " + text(one.end - one.first) +
               " bytes of a tensor, above the " + std::to_string(kSpanBytes) + " it can address");
    }
    if (!device) {
      program_.lx_high_water[core] =
          std::max(program_.lx_high_water[core], static_cast<int64_t>(all.end));
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
      fail("node", node_index,
           "the program makes " + text(iterations_) + " iterations up to here, more than the " +
               std::to_string(kMaxIterations) + " allowed");
    }
    program_.work += static_cast<int64_t>(iterations) * lanes;
  }

  // ---- Helpers ---------------------------------------------------------------------------------

  static bool is_restickify(const StepRecord& step) {
    return step.kind == static_cast<uint8_t>(StepKind::Restickify);
  }

  static int64_t alignment(const OperandRecord& operand) {
    return lanes_of(operand) == Lanes::Element ? element_bytes(format_of(operand)) : kStickBytes;
  }

  [[noreturn]] static void misaligned(size_t index, const char* what, int64_t value, int64_t unit) {
    fail("operand", index,
         std::string(what) + " " + std::to_string(value) + " is no multiple of " +
             std::to_string(unit));
  }

  static void check_range(const char* table, size_t entry, const char* what, uint64_t first,
                          uint64_t count, uint64_t size) {
    if (first > size || count > size - first) {
      fail(table, entry,
           std::string(what) + " " + std::to_string(first) + " to " +
               std::to_string(first + count) + " of a table of " + std::to_string(size));
    }
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
