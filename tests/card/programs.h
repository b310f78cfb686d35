// Card programs for tests: a builder, and random programs that are valid.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "../../torch_spyre/csrc/card/program.h"

namespace spyre::testing {

// Collects the tables of a program and writes them out.
class ProgramBuilder {
 public:
  std::vector<SymbolRecord> symbols;
  std::vector<OperandRecord> operands;
  std::vector<StepRecord> steps;
  std::vector<MaskRecord> masks;
  std::vector<NodeRecord> nodes;
  std::vector<int64_t> bases;
  std::vector<int64_t> extents;
  std::vector<uint32_t> constants;

  uint32_t address(int64_t bytes, bool is_written = false,
                   DataFormat format = DataFormat::SEN169_FP16) {
    symbols.push_back({static_cast<uint8_t>(SymbolKind::Address),
                       static_cast<uint8_t>(format),
                       static_cast<uint8_t>(is_written),
                       {},
                       bytes});
    return static_cast<uint32_t>(symbols.size() - 1);
  }

  uint32_t scalar(DataFormat format) {
    symbols.push_back(
        {static_cast<uint8_t>(SymbolKind::Scalar), static_cast<uint8_t>(format), 0, {}, 4});
    return static_cast<uint32_t>(symbols.size() - 1);
  }

  uint32_t extent(int64_t longest) {
    symbols.push_back({static_cast<uint8_t>(SymbolKind::Extent),
                       static_cast<uint8_t>(DataFormat::IEEE_INT32),
                       0,
                       {},
                       longest});
    return static_cast<uint32_t>(symbols.size() - 1);
  }

  // Adds a mask to the last step: positions along `dim` below a length, or below an extent symbol.
  MaskRecord& mask(uint8_t dim, int64_t valid, std::vector<int64_t> core_bases = {0},
                   bool is_symbol = false) {
    MaskRecord record{};
    record.dim = dim;
    record.is_symbol = is_symbol ? 1 : 0;
    record.valid = static_cast<uint32_t>(is_symbol ? valid : extents.size());
    if (!is_symbol) extents.push_back(valid);
    record.base = static_cast<uint32_t>(bases.size());
    record.base_count = static_cast<uint32_t>(core_bases.size());
    bases.insert(bases.end(), core_bases.begin(), core_bases.end());
    if (steps.back().masks++ == 0) steps.back().first_mask = static_cast<uint32_t>(masks.size());
    masks.push_back(record);
    return masks.back();
  }

  uint32_t constant(uint32_t word) {
    constants.push_back(word);
    return static_cast<uint32_t>(constants.size() - 1);
  }

  OperandRecord operand(Space space, uint32_t symbol, DataFormat format, Lanes lanes,
                        std::vector<int64_t> core_bases, const std::vector<int64_t>& stride) {
    OperandRecord record{};
    record.space = static_cast<uint8_t>(space);
    record.format = static_cast<uint8_t>(format);
    record.lanes = static_cast<uint8_t>(lanes);
    record.symbol = symbol;
    record.base = static_cast<uint32_t>(bases.size());
    record.base_count = static_cast<uint32_t>(core_bases.size());
    bases.insert(bases.end(), core_bases.begin(), core_bases.end());
    std::copy(stride.begin(), stride.end(), record.stride);
    return record;
  }

  OperandRecord device(uint32_t symbol, DataFormat format, const std::vector<int64_t>& stride,
                       std::vector<int64_t> core_bases = {0}) {
    return operand(Space::Device, symbol, format, Lanes::Vector, std::move(core_bases), stride);
  }

  // Adds a step whose operands are `inputs` and one output; returns its index.
  uint32_t step(Opcode opcode, uint32_t cores, const std::vector<int64_t>& extent,
                const std::vector<OperandRecord>& inputs, const OperandRecord& output,
                StepKind kind = StepKind::Pointwise) {
    StepRecord record{};
    record.opcode = static_cast<uint16_t>(opcode);
    record.kind = static_cast<uint8_t>(kind);
    record.rank = static_cast<uint8_t>(extent.size());
    record.cores = cores;
    record.first_operand = static_cast<uint32_t>(operands.size());
    record.inputs = static_cast<uint8_t>(inputs.size());
    record.outputs = 1;
    record.stick_dim = kNoStickDim;
    record.lane_dim = kNoStickDim;
    record.extent = static_cast<uint32_t>(extents.size());
    record.extent_count = 1;
    extents.insert(extents.end(), extent.begin(), extent.end());
    operands.insert(operands.end(), inputs.begin(), inputs.end());
    operands.push_back(output);
    steps.push_back(record);
    return static_cast<uint32_t>(steps.size() - 1);
  }

  void run(uint32_t step) { nodes.push_back({static_cast<uint32_t>(NodeKind::Step), step, 0, 0}); }
  // Opens a loop around the next `size` nodes.
  void loop(uint32_t count, uint32_t size) {
    nodes.push_back({static_cast<uint32_t>(NodeKind::Loop), 0, count, size});
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out(sizeof(ProgramHeader));
    append(out, symbols);
    append(out, operands);
    append(out, steps);
    append(out, masks);
    append(out, nodes);
    append(out, bases);
    append(out, extents);
    append(out, constants);
    out.resize((out.size() + 7) / 8 * 8);
    const ProgramHeader header{kProgramMagic,
                               kProgramVersion,
                               0,
                               size32(out),
                               size32(symbols),
                               size32(operands),
                               size32(steps),
                               size32(masks),
                               size32(nodes),
                               size32(bases),
                               size32(extents),
                               size32(constants),
                               0};
    std::memcpy(out.data(), &header, sizeof(header));
    return out;
  }

 private:
  template <typename Record>
  static uint32_t size32(const std::vector<Record>& table) {
    return static_cast<uint32_t>(table.size());
  }
  template <typename Record>
  static void append(std::vector<std::byte>& out, const std::vector<Record>& table) {
    if (table.empty()) return;
    const size_t place = out.size();
    out.resize(place + table.size() * sizeof(Record));
    std::memcpy(out.data() + place, table.data(), table.size() * sizeof(Record));
  }
};

// Random valid programs over small tensors: every shape of operand, mixed formats, tails, loops,
// scratchpads, barriers, several cores.
class RandomPrograms {
 public:
  explicit RandomPrograms(uint64_t seed) : random_(seed) {}

  ProgramBuilder next() {
    ProgramBuilder builder;
    const int steps = pick(1, 3);
    for (int i = 0; i < steps; ++i) {
      if (pick(0, 3) == 0) {
        add_restickify(builder);
      } else {
        add_pointwise(builder);
      }
    }
    return builder;
  }

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  uint64_t bits() { return random_(); }

 protected:
  struct Shape {
    uint32_t cores = 1;
    std::vector<std::vector<int64_t>> extent;  // one row, or one per core
    std::vector<uint32_t> loops;
    int lanes = 1;
    int64_t largest(size_t dim) const {
      int64_t n = 0;
      for (const auto& row : extent) n = std::max(n, row[dim]);
      return n;
    }
  };

  DataFormat pick_format(bool is_float) {
    static constexpr DataFormat kFloats[] = {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32,
                                             DataFormat::SEN143_FP8,  DataFormat::SEN152_FP8,
                                             DataFormat::IEEE_FP16,   DataFormat::BFLOAT16};
    static constexpr DataFormat kInts[] = {DataFormat::SENINT8, DataFormat::SENINT16,
                                           DataFormat::IEEE_INT32, DataFormat::SENUINT32};
    return is_float ? kFloats[pick(0, 5)] : kInts[pick(0, 3)];
  }

  Shape pick_shape() {
    Shape shape;
    const int rank = pick(0, 4);
    shape.cores = 0;
    for (int i = pick(1, 4); i > 0; --i) shape.cores |= uint32_t{1} << pick(0, kCores - 1);
    const int rows = pick(0, 2) == 0 ? std::popcount(shape.cores) : 1;
    for (int row = 0; row < rows; ++row) {
      auto& extent = shape.extent.emplace_back();
      for (int dim = 0; dim < rank; ++dim) extent.push_back(pick(row == 0 ? 1 : 0, 4));
    }
    if (pick(0, 3) == 0) {
      for (int i = pick(1, 2); i > 0; --i) shape.loops.push_back(pick(1, 3));
    }
    return shape;
  }

  // Gives an operand a dense place per core and loop iteration, its dimensions in random order;
  // inputs may leave dimensions out, go backwards, or share their place. Stands still along
  // `still`.
  void place(ProgramBuilder& builder, const Shape& shape, OperandRecord& record, int64_t unit,
             bool is_output, bool is_lx, uint32_t still = 0) {
    std::vector<int> order(shape.extent[0].size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    int64_t size = unit;
    int64_t start = 0;
    const int tiles = static_cast<int>(unit / kStickBytes);
    const bool tiles_first = tiles > 1 && pick(0, 1) == 0;
    if (tiles > 1) {
      record.tile_stride = kStickBytes;
      if (!tiles_first) size = kStickBytes;
    }
    for (const int dim : order) {
      if ((still >> dim & 1) != 0 || (!is_output && pick(0, 4) == 0)) continue;
      const int64_t extent = shape.largest(dim);
      record.stride[dim] = size;
      if (!is_output && shape.extent.size() == 1 && pick(0, 5) == 0) {
        start += size * (extent - 1);
        record.stride[dim] = -size;
      }
      size *= std::max<int64_t>(1, extent);
    }
    if (tiles > 1 && !tiles_first) {
      record.tile_stride = size;
      size *= tiles;
    }
    size = (size + kStickBytes - 1) / kStickBytes * kStickBytes;
    for (size_t depth = shape.loops.size(); depth-- > 0;) {
      if (!is_output && pick(0, 2) == 0) continue;
      record.loop_stride[depth] = size;
      size *= shape.loops[depth];
    }
    const int cores = std::popcount(shape.cores);
    const bool is_shared = is_lx || (!is_output && pick(0, 2) == 0);
    record.base = static_cast<uint32_t>(builder.bases.size());
    record.base_count = is_shared ? 1 : cores;
    if (is_lx) start += pick(0, 8) * kStickBytes;
    for (uint32_t i = 0; i < record.base_count; ++i) builder.bases.push_back(start + size * i);
    if (is_lx) return;
    record.symbol = builder.address(size * record.base_count, is_output,
                                    static_cast<DataFormat>(record.format));
  }

  OperandRecord make(Space space, DataFormat format, Lanes lanes) {
    OperandRecord record{};
    record.space = static_cast<uint8_t>(space);
    record.format = static_cast<uint8_t>(format);
    record.lanes = static_cast<uint8_t>(lanes);
    return record;
  }

  void finish(ProgramBuilder& builder, const Shape& shape, uint32_t step) {
    StepRecord& record = builder.steps[step];
    builder.extents.resize(record.extent);
    for (const auto& row : shape.extent) {
      builder.extents.insert(builder.extents.end(), row.begin(), row.end());
    }
    record.extent_count = static_cast<uint32_t>(shape.extent.size());
    if (pick(0, 3) == 0) record.flags = kBarrierBefore;
    for (size_t depth = 0; depth < shape.loops.size(); ++depth) {
      builder.loop(shape.loops[depth], static_cast<uint32_t>(shape.loops.size() - depth));
    }
    builder.run(step);
  }

  void add_pointwise(ProgramBuilder& builder) {
    // Operations whose results the reference of the tests can compute itself.
    static constexpr std::pair<Opcode, const char*> kOperations[] = {
        {Opcode::identity, "F:F"},      {Opcode::identity_int, "I:I"}, {Opcode::neg, "F:F"},
        {Opcode::abs, "F:F"},           {Opcode::add, "FF:F"},         {Opcode::mul, "FF:F"},
        {Opcode::sub, "FF:F"},          {Opcode::add_int, "II:I"},     {Opcode::mul_int, "II:I"},
        {Opcode::int_to_float, "I:F"},  {Opcode::where, "FFF:F"},      {Opcode::lt, "FF:F"},
        {Opcode::addcmul_int, "IIII:I"}};
    const auto& [opcode, signature] = kOperations[pick(0, std::size(kOperations) - 1)];
    Shape shape = pick_shape();
    const int inputs = static_cast<int>(std::strchr(signature, ':') - signature);
    std::vector<OperandRecord> records;
    for (int i = 0; i <= inputs; ++i) {
      const bool is_output = i == inputs;
      const bool is_float = signature[is_output ? i + 1 : i] == 'F';
      const int choice = is_output ? pick(0, 1) : pick(0, 9);
      const DataFormat format = pick_format(is_float);
      if (choice == 7) {
        records.push_back(make(Space::Constant, format, Lanes::Vector));
        records.back().symbol = builder.constant(pick_word(is_float));
      } else if (choice == 8) {
        records.push_back(make(Space::Scalar, format, Lanes::Vector));
        records.back().symbol = builder.scalar(format);
      } else if (choice == 9 && !is_float) {
        records.push_back(make(Space::Iota, DataFormat::IEEE_INT32, Lanes::Vector));
      } else {
        const Lanes lanes = !is_output && choice >= 5 ? Lanes::First : Lanes::Vector;
        const bool is_lx = is_output && pick(0, 7) == 0 && shape.loops.empty();
        records.push_back(make(is_lx ? Space::Lx : Space::Device, format, lanes));
        if (lanes == Lanes::Vector) {
          shape.lanes = std::max(shape.lanes, elems_per_stick(format));
        }
      }
    }
    const bool has_tail = !shape.extent[0].empty() && pick(0, 1) == 0;
    for (int i = 0; i <= inputs; ++i) {
      OperandRecord& record = records[i];
      const auto space = static_cast<Space>(record.space);
      if (space == Space::Iota) {
        record.base = static_cast<uint32_t>(builder.bases.size());
        record.base_count = 1;
        builder.bases.push_back(pick(-1000, 1000));
        for (size_t dim = 0; dim < shape.extent[0].size(); ++dim) {
          record.stride[dim] = pick(-200, 200);
        }
        record.tile_stride = pick(-3, 3);
      }
      if (space != Space::Device && space != Space::Lx) continue;
      const bool is_vector = record.lanes == static_cast<uint8_t>(Lanes::Vector);
      const int tiles =
          is_vector ? shape.lanes / elems_per_stick(static_cast<DataFormat>(record.format)) : 1;
      if (has_tail && tiles > 1) record.tail_tiles = static_cast<uint8_t>(pick(0, tiles));
      place(builder, shape, record, tiles * kStickBytes, i == inputs, space == Space::Lx);
    }
    const OperandRecord output = records.back();
    records.pop_back();
    const uint32_t step = builder.step(opcode, shape.cores, shape.extent[0], records, output);
    if (has_tail) {
      builder.steps[step].stick_dim =
          static_cast<uint8_t>(pick(0, static_cast<int>(shape.extent[0].size()) - 1));
      builder.steps[step].tail_cores = shape.cores & static_cast<uint32_t>(bits());
    }
    finish(builder, shape, step);
  }

  void add_restickify(ProgramBuilder& builder) {
    const bool is_float = pick(0, 1) == 0;
    const Shape shape = pick_shape();
    std::vector<OperandRecord> records;
    const DataFormat from = pick_format(is_float);
    for (int i = 0; i < 2; ++i) {
      const DataFormat format = i == 0 || pick(0, 1) == 0 ? from : pick_format(is_float);
      records.push_back(make(Space::Device, format, Lanes::Element));
      place(builder, shape, records.back(), element_bytes(format), i == 1, false);
    }
    const uint32_t step =
        builder.step(is_float ? Opcode::identity : Opcode::identity_int, shape.cores,
                     shape.extent[0], {records[0]}, records[1], StepKind::Restickify);
    finish(builder, shape, step);
  }

  uint32_t pick_word(bool is_float) {
    return is_float ? std::bit_cast<uint32_t>(static_cast<float>(pick(-20, 20)) / 4)
                    : static_cast<uint32_t>(pick(-1000, 1000));
  }

  std::mt19937_64 random_;
};

}  // namespace spyre::testing
