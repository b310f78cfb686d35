#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../cost/cost.h"
#include "validate.h"
#include "walk.h"

namespace spyre {
namespace {

// Limits that no real program comes near, so that loading a wrong one stays cheap.
constexpr uint32_t kMaxSymbols = 1 << 16;
constexpr uint32_t kMaxOperands = 1 << 19;
constexpr uint32_t kMaxSteps = 1 << 16;
constexpr uint32_t kMaxNodes = 1 << 16;
constexpr uint32_t kMaxBases = 1 << 24;
constexpr uint32_t kMaxExtents = 1 << 24;
constexpr uint32_t kMaxConstants = 1 << 20;

// ---- Parsing -----------------------------------------------------------------------------------

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename Record>
  Record one() {
    return std::move(table<Record>("header", 1, 1).front());
  }

  template <typename Record>
  std::vector<Record> table(const char* name, uint32_t count, uint32_t limit) {
    if (count > limit) {
      throw ProgramError(std::string("card program rejected: ") + name + ": " +
                         std::to_string(count) + " entries, the limit is " + std::to_string(limit));
    }
    const size_t size = count * sizeof(Record);
    if (size > bytes_.size()) {
      throw ProgramError(std::string("card program rejected: ") + name + ": " +
                         std::to_string(size) + " bytes, but only " +
                         std::to_string(bytes_.size()) + " are left");
    }
    std::vector<Record> records(count);
    if (size != 0) std::memcpy(records.data(), bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return records;
  }

  void skip(size_t size) { bytes_ = bytes_.subspan(std::min(size, bytes_.size())); }
  size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

Program parse(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Program program;
  program.header = reader.one<ProgramHeader>();
  const ProgramHeader& header = program.header;
  if (header.magic != kProgramMagic) {
    throw ProgramError("card program rejected: header: wrong magic number");
  }
  if (header.version != kProgramVersion) {
    throw ProgramError("card program rejected: header: version " + std::to_string(header.version) +
                       ", this card executes version " + std::to_string(kProgramVersion));
  }
  if (header.reserved != 0) {
    throw ProgramError("card program rejected: header: reserved field must be 0");
  }
  if (header.size != bytes.size()) {
    throw ProgramError("card program rejected: header: size " + std::to_string(header.size) +
                       ", but there are " + std::to_string(bytes.size()) + " bytes");
  }
  program.symbols = reader.table<SymbolRecord>("symbols", header.symbols, kMaxSymbols);
  program.operands = reader.table<OperandRecord>("operands", header.operands, kMaxOperands);
  program.steps = reader.table<StepRecord>("steps", header.steps, kMaxSteps);
  program.nodes = reader.table<NodeRecord>("nodes", header.nodes, kMaxNodes);
  program.bases = reader.table<int64_t>("bases", header.bases, kMaxBases);
  program.extents = reader.table<int64_t>("extents", header.extents, kMaxExtents);
  program.constants = reader.table<uint32_t>("constants", header.constants, kMaxConstants);
  const size_t padding = header.constants % 2 * sizeof(uint32_t);
  if (reader.left() != padding) {
    throw ProgramError("card program rejected: " + std::to_string(reader.left()) +
                       " bytes follow the tables, expected " + std::to_string(padding));
  }
  return program;
}

// ---- Figures -----------------------------------------------------------------------------------

// Sticks of device memory that all cores together move through an operand. Cores that start at
// the same place share what they read: it is loaded once and broadcast.
int64_t shared_sticks(const Program& program, const StepRecord& step, const OperandRecord& operand,
                      int lanes) {
  std::vector<std::pair<int64_t, int64_t>> slices;  // base, sticks
  for (int core = 0; core < kCores; ++core) {
    if (!has_core(step.cores, core)) continue;
    const int64_t base = base_at(program, operand, core_slot(step.cores, core));
    slices.emplace_back(base, sticks_of(program, step, operand, core, lanes));
  }
  std::sort(slices.begin(), slices.end(), std::greater<>());
  int64_t sticks = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (i == 0 || slices[i].first != slices[i - 1].first) sticks += slices[i].second;
  }
  return sticks;
}

// Does every core read the operand again and again, or one value for a whole stick?
bool is_broadcast(const Program& program, const StepRecord& step, const OperandRecord& operand) {
  if (!is_device(operand)) return false;
  if (lanes_of(operand) == Lanes::First) return true;
  for (int dim = 0; dim < step.rank; ++dim) {
    if (operand.stride[dim] != 0) continue;
    for (uint32_t row = 0; row < step.extent_count; ++row) {
      if (extent_at(program, step, static_cast<int>(row), dim) > 1) return true;
    }
  }
  return false;
}

cost::Traffic traffic_of(const Program& program, const StepRecord& step) {
  if (program.steps.size() != 1) return cost::Traffic::Fused;
  const auto operands = operands_of(program, step);
  if (step.kind == static_cast<uint8_t>(StepKind::Restickify)) {
    return std::any_of(operands.begin(), operands.end(), is_device) ? cost::Traffic::Restickify
                                                                    : cost::Traffic::Fused;
  }
  return std::any_of(operands.begin(), operands.end() - step.outputs,
                     [&](const OperandRecord& input) { return is_broadcast(program, step, input); })
             ? cost::Traffic::BroadcastPointwise
             : cost::Traffic::Fused;
}

cost::Step describe(const Program& program, const StepRecord& step, int lanes) {
  cost::Step description;
  description.traffic = traffic_of(program, step);
  description.cores = std::popcount(step.cores);
  const auto operands = operands_of(program, step);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!is_device(operands[i])) continue;
    (i < step.inputs ? description.bytes_read : description.bytes_written) +=
        shared_sticks(program, step, operands[i], lanes) * kStickBytes;
  }
  for (int core = 0; core < kCores; ++core) {
    if (!has_core(step.cores, core)) continue;
    int64_t read = 0, written = 0;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!is_in_memory(operands[i]) || is_device(operands[i])) continue;
      (i < step.inputs ? read : written) +=
          sticks_of(program, step, operands[i], core, lanes) * kStickBytes;
    }
    description.lx_read = std::max(description.lx_read, read);
    description.lx_written = std::max(description.lx_written, written);
    if (step.kind == static_cast<uint8_t>(StepKind::Pointwise)) {
      const int64_t elements = iterations_of(program, step, core_slot(step.cores, core)) * lanes;
      description.sfp_elements = std::max(description.sfp_elements, elements);
    }
  }
  return description;
}

// How often each step runs in one launch.
std::vector<int64_t> count_runs(const Program& program) {
  std::vector<int64_t> runs(program.steps.size(), 0);
  std::vector<std::pair<size_t, int64_t>> loops;  // end of the body, runs of it
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    while (!loops.empty() && loops.back().first <= i) loops.pop_back();
    const int64_t outer = loops.empty() ? 1 : loops.back().second;
    const NodeRecord& node = program.nodes[i];
    if (node.kind == static_cast<uint32_t>(NodeKind::Loop)) {
      loops.emplace_back(i + 1 + node.size, outer * node.count);
    } else {
      runs[node.step] += outer;
    }
  }
  return runs;
}

void derive_figures(Program& program) {
  const std::vector<int64_t> runs = count_runs(program);
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const cost::Step step = describe(program, program.steps[i], program.lanes[i]);
    const cost::Breakdown shares = cost::breakdown(step);
    const auto busy = [&](double share) {
      return runs[i] * static_cast<int64_t>(std::ceil(share));
    };
    program.nanoseconds += runs[i] * cost::nanoseconds(step);
    program.bytes_read += runs[i] * step.bytes_read;
    program.bytes_written += runs[i] * step.bytes_written;
    program.pt_busy += busy(shares.pt);
    program.sfp_busy += busy(shares.sfp);
    program.memory_busy += busy(shares.memory);
    program.lx_busy += busy(shares.lx);
  }
}

}  // namespace

std::shared_ptr<const Program> load_program(std::span<const std::byte> bytes) {
  auto program = std::make_shared<Program>(parse(bytes));
  validate(*program);
  derive_figures(*program);
  return program;
}

}  // namespace spyre
