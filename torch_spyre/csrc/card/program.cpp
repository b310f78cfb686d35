#include "program.h"

#include <algorithm>
#include <cstring>

#include "figures.h"
#include "validate.h"

namespace spyre {
namespace {

// Limits that no real program comes near, so that loading a wrong one stays cheap.
constexpr uint32_t kMaxSymbols = 1 << 16;
constexpr uint32_t kMaxOperands = 1 << 19;
constexpr uint32_t kMaxSteps = 1 << 16;
constexpr uint32_t kMaxMasksInProgram = 1 << 17;
constexpr uint32_t kMaxNodes = 1 << 16;
constexpr uint32_t kMaxBases = 1 << 24;
constexpr uint32_t kMaxExtents = 1 << 24;
constexpr uint32_t kMaxConstants = 1 << 20;

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
  if (header.reserved != 0 || header.padding != 0) {
    throw ProgramError("card program rejected: header: reserved fields must be 0");
  }
  if (header.size != bytes.size()) {
    throw ProgramError("card program rejected: header: size " + std::to_string(header.size) +
                       ", but there are " + std::to_string(bytes.size()) + " bytes");
  }
  program.symbols = reader.table<SymbolRecord>("symbols", header.symbols, kMaxSymbols);
  program.operands = reader.table<OperandRecord>("operands", header.operands, kMaxOperands);
  program.steps = reader.table<StepRecord>("steps", header.steps, kMaxSteps);
  program.masks = reader.table<MaskRecord>("masks", header.masks, kMaxMasksInProgram);
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

void add_figures(Program& program) {
  program.figures = figures_of(program);
  for (const StepFigures& step : program.figures) {
    program.nanoseconds += step.nanoseconds;
    program.bytes_read += step.bytes_read;
    program.bytes_written += step.bytes_written;
    program.pt_busy += step.pt;
    program.sfp_busy += step.sfp;
    program.memory_busy += step.memory;
    program.lx_busy += step.lx;
  }
}

}  // namespace

std::shared_ptr<const Program> load_program(std::span<const std::byte> bytes) {
  auto program = std::make_shared<Program>(parse(bytes));
  validate(*program);
  add_figures(*program);
  return program;
}

}  // namespace spyre
