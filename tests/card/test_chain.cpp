// Chains against the same steps one by one: flags change how steps run, never their bits.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/kernels.h"
#include "../../torch_spyre/csrc/card/program.h"
#include "check.h"
#include "launches.h"
#include "operands.h"
#include "programs.h"

namespace {

using namespace spyre;
using spyre::testing::IsaScope;
using spyre::testing::Launch;
using spyre::testing::ProgramBuilder;
using spyre::testing::RandomPrograms;

using Bytes = std::vector<std::byte>;

constexpr DataFormat kFloats[] = {
    DataFormat::SEN169_FP16, DataFormat::IEEE_FP32, DataFormat::SEN143_FP8,
    DataFormat::SEN152_FP8,  DataFormat::IEEE_FP16, DataFormat::SEN153_FP9,
    DataFormat::BFLOAT16,    DataFormat::BOOL,      DataFormat::SEN18F_FP24};
constexpr DataFormat kInts[] = {DataFormat::SENINT8, DataFormat::SENINT16, DataFormat::SENINT24,
                                DataFormat::IEEE_INT32, DataFormat::SENUINT32};
constexpr kernels::Isa kIsas[] = {kernels::Isa::Baseline, kernels::Isa::V3, kernels::Isa::V4};

ProgramBuilder without_flags(ProgramBuilder builder) {
  for (StepRecord& step : builder.steps) step.flags &= ~uint32_t{kChained | kDiscarded};
  return builder;
}

Bytes memory_after(const ProgramBuilder& builder, uint64_t seed, int threads) {
  Launch launch(builder, seed);
  launch.run(threads);
  return launch.memory;
}

// ---- Random chains -----------------------------------------------------------------------------

// Steps of any operation over the same iterations. They read results of each other, tensors in
// device memory and in LX, broadcast along some dimensions or from lane 0, constants, scalars and
// counters, in all formats; results go to LX, over what was there, or to device memory.
class RandomChains : public RandomPrograms {
 public:
  explicit RandomChains(uint64_t seed) : RandomPrograms(seed) {}

  ProgramBuilder next(bool is_large) {
    ProgramBuilder builder;
    shape_ = pick_shape();
    if (is_large) {
      shape_.cores = pick(0, 1) == 0 ? 1U : 0b10110U;
      shape_.extent = {{pick(3, 9), pick(30, 90), pick(1, 9)}};
      shape_.loops.clear();
    }
    shape_.lanes = 32 << pick(0, 2);
    has_tail_ = !shape_.extent[0].empty() && pick(0, 1) == 0;
    stick_dim_ = has_tail_ ? pick(0, static_cast<int>(shape_.extent[0].size()) - 1) : kNoStickDim;
    tail_cores_ = shape_.cores & static_cast<uint32_t>(bits());
    lx_used_ = 0;
    written_.clear();
    const int length = pick(2, 12);
    for (size_t depth = 0; depth < shape_.loops.size(); ++depth) {
      const auto inner = static_cast<uint32_t>(shape_.loops.size() - depth - 1);
      builder.loop(shape_.loops[depth], inner + static_cast<uint32_t>(length));
    }
    for (int i = 0; i < length; ++i) add_step(builder, i == 0, i == length - 1);
    return builder;
  }

 private:
  struct Written {
    OperandRecord operand;
    bool is_float;
  };

  void add_step(ProgramBuilder& builder, bool is_first, bool is_last) {
    uint16_t opcode = 0;
    while (opcode_group(opcode) != OpcodeGroup::Pointwise) {
      opcode = pick(0, 5) == 0 ? static_cast<uint16_t>(pick(1, 2)) : static_cast<uint16_t>(bits());
      opcode %= kOpcodes;
    }
    const OpcodeInfo& info = opcode_info(opcode);
    std::vector<OperandRecord> inputs;
    for (int i = 0; i < info.inputs; ++i) {
      inputs.push_back(pick_input(builder, info.signature[i] == 'F', i == 0));
    }
    const bool is_float = info.signature.back() == 'F';
    // One operand has the iteration's lanes in a stick.
    const bool has_widest =
        std::any_of(inputs.begin(), inputs.end(), [&](const OperandRecord& input) {
          return input.space <= static_cast<uint8_t>(Space::Lx) &&
                 input.lanes == static_cast<uint8_t>(Lanes::Vector) && is_widest(input);
        });
    const OperandRecord output = pick_output(builder, is_float, has_widest, is_last);
    const uint32_t step =
        builder.step(static_cast<Opcode>(opcode), shape_.cores, shape_.extent[0], inputs, output);
    StepRecord& record = builder.steps[step];
    builder.extents.resize(record.extent);
    for (const auto& row : shape_.extent) {
      builder.extents.insert(builder.extents.end(), row.begin(), row.end());
    }
    record.extent_count = static_cast<uint32_t>(shape_.extent.size());
    record.stick_dim = static_cast<uint8_t>(stick_dim_);
    record.tail_cores = has_tail_ ? tail_cores_ : 0;
    if (!is_first) record.flags |= kChained;
    const bool is_lx = output.space == static_cast<uint8_t>(Space::Lx);
    if (is_lx && !is_last && pick(0, 2) != 0) record.flags |= kDiscarded;
    written_.push_back({output, is_float});
    builder.run(step);
  }

  bool is_widest(const OperandRecord& operand) const {
    return elems_per_stick(static_cast<DataFormat>(operand.format)) == shape_.lanes;
  }

  // A format that has the iteration's lanes in one stick, or any with fewer.
  DataFormat pick_any_format(bool is_float, bool wants_widest) {
    while (true) {
      const DataFormat format = is_float ? kFloats[pick(0, std::size(kFloats) - 1)]
                                         : kInts[pick(0, std::size(kInts) - 1)];
      const int lanes = elems_per_stick(format);
      if (lanes == shape_.lanes || (!wants_widest && lanes < shape_.lanes)) return format;
    }
  }

  OperandRecord pick_input(ProgramBuilder& builder, bool is_float, bool is_first) {
    std::vector<OperandRecord> results;
    for (const Written& written : written_) {
      if (written.is_float == is_float) results.push_back(written.operand);
    }
    if (!results.empty() && (is_first || pick(0, 1) == 0)) {
      return results[static_cast<size_t>(pick(0, static_cast<int>(results.size()) - 1))];
    }
    const int choice = is_first ? 0 : pick(0, 7);
    const DataFormat format = pick_any_format(is_float, false);
    if (choice == 5) {
      OperandRecord record = make(Space::Constant, format, Lanes::Vector);
      record.symbol = builder.constant(pick_word(is_float));
      return record;
    }
    if (choice == 6) {
      OperandRecord record = make(Space::Scalar, format, Lanes::Vector);
      record.symbol = builder.scalar(format);
      return record;
    }
    if (choice == 7 && !is_float) return pick_counter(builder);
    OperandRecord record = make(Space::Device, format, choice >= 4 ? Lanes::First : Lanes::Vector);
    place_in_memory(builder, record, false);
    return record;
  }

  OperandRecord pick_counter(ProgramBuilder& builder) {
    OperandRecord record = make(Space::Iota, DataFormat::IEEE_INT32, Lanes::Vector);
    record.base = static_cast<uint32_t>(builder.bases.size());
    record.base_count = 1;
    builder.bases.push_back(pick(-1000, 1000));
    for (size_t dim = 0; dim < shape_.extent[0].size(); ++dim) record.stride[dim] = pick(-200, 200);
    record.tile_stride = pick(-3, 3);
    return record;
  }

  OperandRecord pick_output(ProgramBuilder& builder, bool is_float, bool has_widest, bool is_last) {
    // Over an earlier result, which the step may read.
    if (!written_.empty() && !is_last && pick(0, 2) == 0) {
      const Written& written =
          written_[static_cast<size_t>(pick(0, static_cast<int>(written_.size()) - 1))];
      if (written.is_float == is_float && (has_widest || is_widest(written.operand))) {
        return written.operand;
      }
    }
    const bool is_lx = !is_last && pick(0, 3) != 0;
    const DataFormat format = pick_any_format(is_float, !has_widest);
    OperandRecord record = make(is_lx ? Space::Lx : Space::Device, format, Lanes::Vector);
    place_in_memory(builder, record, true);
    return record;
  }

  void place_in_memory(ProgramBuilder& builder, OperandRecord& record, bool is_output) {
    const bool is_vector = record.lanes == static_cast<uint8_t>(Lanes::Vector);
    const int per_stick = elems_per_stick(static_cast<DataFormat>(record.format));
    const int tiles = is_vector ? shape_.lanes / per_stick : 1;
    if (has_tail_ && tiles > 1) record.tail_tiles = static_cast<uint8_t>(pick(0, tiles));
    const bool is_lx = record.space == static_cast<uint8_t>(Space::Lx);
    place(builder, shape_, record, tiles * kStickBytes, is_output, is_lx);
    if (!is_lx) return;
    // Behind what is there already.
    int64_t bytes = tiles * kStickBytes;
    for (size_t dim = 0; dim < shape_.extent[0].size(); ++dim) {
      bytes *= std::max<int64_t>(1, shape_.largest(dim));
    }
    for (const uint32_t count : shape_.loops) bytes *= count;
    builder.bases[record.base] = lx_used_;
    lx_used_ += bytes;
  }

  Shape shape_;
  bool has_tail_ = false;
  int stick_dim_ = kNoStickDim;
  uint32_t tail_cores_ = 0;
  int64_t lx_used_ = 0;
  std::vector<Written> written_;
};

TEST(random_chains_give_the_bits_of_their_steps) {
  RandomChains chains(20240607);
  int accepted = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const ProgramBuilder chain = chains.next(seed % 16 == 0);
    Bytes expected;
    try {
      expected = memory_after(without_flags(chain), seed, 1);
      load_program(chain.bytes());
    } catch (const ProgramError&) {
      continue;  // too large for LX, for one
    }
    ++accepted;
    for (const kernels::Isa isa : kIsas) {
      if (!kernels::isa_available(isa)) continue;
      const IsaScope scope(isa);
      const int threads = seed % 16 == 0 ? (seed % 32 == 0 ? 5 : 2) : 1;
      const bool same = memory_after(chain, seed, threads) == expected;
      CHECK(same);
      if (!same) {
        std::fprintf(stderr, "random chain %llu differs on %d\n",
                     static_cast<unsigned long long>(seed), static_cast<int>(isa));
        return;
      }
    }
  }
  CHECK(accepted > 1350);
}

// ---- Chains with a point -----------------------------------------------------------------------

// y = (x * x) * x in SEN169, through LX; x, an intermediate result and y in the same place or not.
struct Cube {
  explicit Cube(bool is_in_place, bool is_discarded) {
    constexpr int64_t kSticks = 70;
    const auto format = DataFormat::SEN169_FP16;
    const uint32_t x = builder.address(kSticks * 128);
    const uint32_t y = builder.address(kSticks * 128, true);
    const auto lx = [&](int64_t base) {
      return builder.operand(Space::Lx, 0, format, Lanes::Vector, {base}, {128});
    };
    const auto copy = lx(0);
    const auto square = lx(is_in_place ? 0 : kSticks * 128);
    const auto from = builder.device(x, format, {128});
    builder.run(builder.step(Opcode::identity, 1, {kSticks}, {from}, copy));
    builder.run(builder.step(Opcode::mul, 1, {kSticks}, {copy, copy}, square));
    builder.run(
        builder.step(Opcode::mul, 1, {kSticks}, {square, from}, builder.device(y, format, {128})));
    for (size_t i = 1; i < 3; ++i) builder.steps[i].flags |= kChained;
    if (is_discarded) builder.steps[0].flags |= kDiscarded;
    if (is_discarded) builder.steps[1].flags |= kDiscarded;
  }
  ProgramBuilder builder;
};

TEST(each_result_of_a_chain_is_rounded_to_its_buffer) {
  for (const bool is_in_place : {false, true}) {
    for (const bool is_discarded : {false, true}) {
      Launch launch(Cube(is_in_place, is_discarded).builder, 3);
      launch.run(1);
      const kernels::Table& table = kernels::table();
      const auto format = static_cast<size_t>(DataFormat::SEN169_FP16);
      for (int64_t i = 0; i < 70 * 64; ++i) {
        kernels::Word x = 0;
        table.load[format](launch.data(0) + 2 * i, &x, 1);
        const float value = kernels::as_float(x);
        kernels::Word square = kernels::as_word(value * value);
        std::byte stored[2];
        table.store[format](&square, stored, 1);
        table.load[format](stored, &square, 1);
        const kernels::Word cube = kernels::as_word(kernels::as_float(square) * value);
        table.store[format](&cube, stored, 1);
        CHECK(std::memcmp(stored, launch.data(1) + 2 * i, 2) == 0);
      }
    }
  }
}

// Steps whose result stays in one stick: the steps after it read what the last iteration left.
TEST(a_result_that_is_written_over_and_over_is_read_as_it_was_left) {
  ProgramBuilder builder;
  const auto format = DataFormat::SEN169_FP16;
  const uint32_t x = builder.address(50 * 128);
  const uint32_t y = builder.address(50 * 128, true);
  const auto lx = builder.operand(Space::Lx, 0, format, Lanes::Vector, {0}, {0});
  builder.run(builder.step(Opcode::neg, 1, {50}, {builder.device(x, format, {128})}, lx));
  builder.run(builder.step(Opcode::abs, 1, {50}, {lx}, builder.device(y, format, {128})));
  builder.steps[1].flags |= kChained;
  CHECK(memory_after(builder, 5, 1) == memory_after(without_flags(builder), 5, 1));
}

// A chain that is longer than the words a core holds is cut; discarded results get across.
TEST(a_long_chain_gives_the_bits_of_its_steps) {
  ProgramBuilder builder;
  const auto format = DataFormat::IEEE_FP32;
  constexpr int kSteps = 100;
  const uint32_t y = builder.address(100 * 128, true, format);
  std::vector<OperandRecord> results;
  for (int i = 0; i < kSteps; ++i) {
    const uint32_t x = builder.address(100 * 128, false, format);
    const auto from = builder.device(x, format, {128});
    const auto to = i == kSteps - 1
                        ? builder.device(y, format, {128})
                        : builder.operand(Space::Lx, 0, format, Lanes::Vector, {i * 12800}, {128});
    builder.run(builder.step(Opcode::sub, 1, {100}, {from, i == 0 ? from : results[i / 2]}, to));
    if (i > 0) builder.steps.back().flags |= kChained;
    if (i < kSteps - 1) builder.steps.back().flags |= kDiscarded;
    results.push_back(to);
  }
  CHECK(memory_after(builder, 6, 1) == memory_after(without_flags(builder), 6, 1));
}

// Simple operations and tables on sticks, nothing stored before the end: results go from step to
// step as words or as sticks, in rows that are used again.
TEST(tables_and_simple_operations_in_any_order_give_the_bits_of_their_steps) {
  constexpr Opcode kOps[] = {Opcode::add,  Opcode::mul,  Opcode::maximum, Opcode::gelu,
                             Opcode::tanh, Opcode::silu, Opcode::exp,     Opcode::neg};
  constexpr auto kFormat = DataFormat::SEN169_FP16;
  constexpr int64_t kSticks = 150;  // several blocks
  std::mt19937 random(11);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (uint64_t seed = 0; seed < 200; ++seed) {
    ProgramBuilder builder;
    std::vector<OperandRecord> values;
    for (int i = 0; i < 2; ++i) {
      values.push_back(builder.device(builder.address(kSticks * 128), kFormat, {128}));
    }
    const size_t steps = 2 + below(7);
    for (size_t i = 0; i < steps; ++i) {
      const bool is_last = i == steps - 1;
      const Opcode op = kOps[below(std::size(kOps))];
      std::vector<OperandRecord> inputs{values.back()};
      if (opcode_info(static_cast<uint16_t>(op)).inputs == 2)
        inputs.push_back(values[below(values.size())]);
      const auto offset = static_cast<int64_t>(i) * kSticks * 128;
      const auto result =
          is_last ? builder.device(builder.address(kSticks * 128, true), kFormat, {128})
                  : builder.operand(Space::Lx, 0, kFormat, Lanes::Vector, {offset}, {128});
      builder.run(builder.step(op, 1, {kSticks}, inputs, result));
      if (i > 0) builder.steps.back().flags |= kChained;
      if (!is_last) builder.steps.back().flags |= kDiscarded;
      values.push_back(result);
    }
    const Bytes expected = memory_after(without_flags(builder), seed, 1);
    for (const kernels::Isa isa : kIsas) {
      if (!kernels::isa_available(isa)) continue;
      const IsaScope scope(isa);
      CHECK(memory_after(builder, seed, 1) == expected);
    }
  }
}

// ---- The kernels of chains ---------------------------------------------------------------------

TEST(rounding_in_place_is_storing_and_loading) {
  const kernels::Words words = kernels::operands_of(1, 100'000, 7)[0];
  const auto n = static_cast<int64_t>(words.size());
  for (const kernels::Isa isa : kIsas) {
    if (!kernels::isa_available(isa)) continue;
    const IsaScope scope(isa);
    const kernels::Table& table = kernels::table();
    for (size_t format = 0; format < kDataFormats; ++format) {
      if (table.load[format] == nullptr) continue;
      Bytes stored(words.size() * 4), again(words.size() * 4);
      kernels::Words expected(words.size()), rounded = words;
      table.store[format](words.data(), stored.data(), n);
      table.load[format](stored.data(), expected.data(), n);
      if (table.round[format] != nullptr) table.round[format](rounded.data(), n);
      CHECK(rounded == expected);
      table.store[format](rounded.data(), again.data(), n);
      CHECK(again == stored);
    }
  }
}

// Every pattern of SEN169, and what lies between them.
TEST(rounding_to_SEN169_is_storing_and_loading_for_all_numbers_near_its_grid) {
  kernels::Words words;
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto stored = static_cast<uint16_t>(code);
    kernels::Word word = 0;
    kernels::table().load[0](reinterpret_cast<const std::byte*>(&stored), &word, 1);
    for (const int32_t off : {-0x2001, -0x2000, -0x1FFF, -1, 0, 1, 0x1FFF, 0x2000, 0x2001}) {
      words.push_back(word + static_cast<uint32_t>(off));
    }
  }
  const auto n = static_cast<int64_t>(words.size());
  for (const kernels::Isa isa : kIsas) {
    if (!kernels::isa_available(isa)) continue;
    const IsaScope scope(isa);
    const kernels::Table& table = kernels::table();
    Bytes stored(words.size() * 2);
    kernels::Words expected(words.size()), rounded = words;
    table.store[0](words.data(), stored.data(), n);
    table.load[0](stored.data(), expected.data(), n);
    table.round[0](rounded.data(), n);
    CHECK(rounded == expected);
  }
}

}  // namespace
