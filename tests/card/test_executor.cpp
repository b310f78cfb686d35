// The executor against an interpreter that goes element by element and shares nothing with it.
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/executor.h"
#include "../../torch_spyre/csrc/card/program.h"
#include "check.h"
#include "programs.h"

namespace {

using namespace spyre;
using spyre::testing::ProgramBuilder;
using spyre::testing::RandomPrograms;

using Bytes = std::vector<std::byte>;

// ---- The reference -----------------------------------------------------------------------------

class Interpreter {
 public:
  Interpreter(const Program& program, std::vector<Binding> bindings, Bytes& memory)
      : program_(program), bindings_(std::move(bindings)), memory_(memory) {}

  void run() { run_nodes(0, program_.nodes.size()); }

 private:
  void run_nodes(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const NodeRecord& node = program_.nodes[i];
      if (node.kind == static_cast<uint32_t>(NodeKind::Step)) {
        run_step(program_.steps[node.step]);
        continue;
      }
      loops_.push_back(0);
      for (uint32_t n = 0; n < node.count; ++n) {
        loops_.back() = n;
        run_nodes(i + 1, i + 1 + node.size);
      }
      loops_.pop_back();
      i += node.size;
    }
  }

  void run_step(const StepRecord& step) {
    int lanes = 1;
    for (int i = 0; i <= step.inputs; ++i) {
      const OperandRecord& operand = program_.operands[step.first_operand + i];
      if (operand.space <= 1 && operand.lanes == 0) {
        lanes = std::max(lanes, elems_per_stick(static_cast<DataFormat>(operand.format)));
      }
    }
    int slot = 0;
    for (int core = 0; core < kCores; ++core) {
      if ((step.cores >> core & 1) == 0) continue;
      std::vector<int64_t> extent;
      for (int dim = 0; dim < step.rank; ++dim) {
        const int row = step.extent_count == 1 ? 0 : slot;
        extent.push_back(program_.extents[step.extent + row * step.rank + dim]);
      }
      std::vector<int64_t> index(step.rank, 0);
      const bool is_empty = std::find(extent.begin(), extent.end(), 0) != extent.end();
      for (bool more = !is_empty; more;) {
        for (int lane = 0; lane < lanes; ++lane) {
          run_lane(step, core, slot, extent, index, lanes, lane);
        }
        more = false;
        for (int dim = step.rank - 1; dim >= 0 && !more; --dim) {
          more = ++index[dim] < extent[dim];
          if (!more) index[dim] = 0;
        }
      }
      ++slot;
    }
  }

  void run_lane(const StepRecord& step, int core, int slot, const std::vector<int64_t>& extent,
                const std::vector<int64_t>& index, int lanes, int lane) {
    std::array<uint32_t, 4> in{};
    const bool is_last =
        (step.tail_cores >> core & 1) != 0 && index[step.stick_dim] == extent[step.stick_dim] - 1;
    std::byte* target = nullptr;
    const OperandRecord* output = nullptr;
    for (int i = 0; i <= step.inputs; ++i) {
      const OperandRecord& operand = program_.operands[step.first_operand + i];
      const auto format = static_cast<DataFormat>(operand.format);
      if (operand.space == 2) {
        in[i] = static_cast<uint32_t>(bindings_[operand.symbol].value);
        continue;
      }
      if (operand.space == 3) {
        in[i] = program_.constants[operand.symbol];
        continue;
      }
      int64_t place = program_.bases[operand.base + (operand.base_count == 1 ? 0 : slot)];
      for (int dim = 0; dim < step.rank; ++dim) place += index[dim] * operand.stride[dim];
      for (size_t depth = 0; depth < loops_.size(); ++depth) {
        place += loops_[depth] * operand.loop_stride[depth];
      }
      if (operand.space == 4) {
        in[i] = static_cast<uint32_t>(place + lane * operand.tile_stride);
        continue;
      }
      bool is_missing = false;
      if (operand.lanes == 0) {
        const int per_stick = elems_per_stick(format);
        const int tile = lane / per_stick;
        is_missing = is_last && operand.tail_tiles != 0 && tile >= operand.tail_tiles;
        if (lanes > per_stick) place += tile * operand.tile_stride;
        place += lane % per_stick * element_bytes(format);
      }
      std::byte* address = operand.space == 0
                               ? memory_.data() + bindings_[operand.symbol].value + place
                               : scratchpad(core) + place;
      if (i == step.inputs) {
        target = is_missing ? nullptr : address;
        output = &operand;
      } else {
        in[i] = is_missing ? 0 : read(address, format);
      }
    }
    if (target == nullptr) return;
    const uint32_t result = compute(static_cast<Opcode>(step.opcode), in);
    write(target, static_cast<DataFormat>(output->format), result);
  }

  static uint32_t compute(Opcode opcode, const std::array<uint32_t, 4>& in) {
    const auto f = [&](int i) { return std::bit_cast<float>(in[i]); };
    const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
    switch (opcode) {
      case Opcode::identity:
      case Opcode::identity_int:
        return in[0];
      case Opcode::neg:
        return bits(-f(0));
      case Opcode::abs:
        return bits(std::fabs(f(0)));
      case Opcode::add:
        return bits(f(0) + f(1));
      case Opcode::sub:
        return bits(f(0) - f(1));
      case Opcode::mul:
        return bits(f(0) * f(1));
      case Opcode::lt:
        return bits(f(0) < f(1) ? 1.0F : 0.0F);
      case Opcode::where:
        return f(0) != 0 ? in[1] : in[2];
      case Opcode::add_int:
        return in[0] + in[1];
      case Opcode::mul_int:
        return in[0] * in[1];
      case Opcode::int_to_float:
        return bits(static_cast<float>(static_cast<int32_t>(in[0])));
      case Opcode::addcmul_int:
        return in[0] + in[3] * in[1] * in[2];
      default:
        CHECK(false);
        return 0;
    }
  }

  static uint32_t read(const std::byte* address, DataFormat format) {
    uint32_t raw = 0;
    std::memcpy(&raw, address, element_bytes(format));
    return format_info(format).domain == Domain::Float
               ? std::bit_cast<uint32_t>(decode_float(format, raw))
               : static_cast<uint32_t>(decode_int(format, raw));
  }

  static void write(std::byte* address, DataFormat format, uint32_t word) {
    const uint32_t raw = format_info(format).domain == Domain::Float
                             ? encode_float(format, std::bit_cast<float>(word))
                             : encode_int(format, static_cast<int32_t>(word));
    std::memcpy(address, &raw, element_bytes(format));
  }

  std::byte* scratchpad(int core) {
    Bytes& lx = lx_[core];
    lx.resize(kLxBytes);
    return lx.data();
  }

  const Program& program_;
  const std::vector<Binding> bindings_;
  Bytes& memory_;
  std::map<int, Bytes> lx_;
  std::vector<int64_t> loops_;
};

// ---- Running both ------------------------------------------------------------------------------

struct Setup {
  std::shared_ptr<const Program> program;
  std::vector<Binding> bindings;
  Bytes memory;
};

// Binds the symbols one after the other in memory filled with moderate numbers of any format.
Setup bind(const ProgramBuilder& builder, uint64_t seed) {
  Setup setup;
  setup.program = load_program(builder.bytes());
  std::mt19937_64 random(seed);
  for (const SymbolRecord& symbol : setup.program->symbols) {
    if (symbol.kind == static_cast<uint8_t>(SymbolKind::Scalar)) {
      const bool is_float =
          format_info(static_cast<DataFormat>(symbol.format)).domain == Domain::Float;
      setup.bindings.push_back({is_float ? std::bit_cast<uint32_t>(1.5F) : 7U, 4});
      continue;
    }
    setup.bindings.push_back({setup.memory.size(), symbol.bytes});
    const auto format = static_cast<DataFormat>(symbol.format);
    for (int64_t i = 0; i < symbol.bytes; i += element_bytes(format)) {
      const int value = static_cast<int>(random() % 41) - 20;
      const uint32_t raw = format_info(format).domain == Domain::Float
                               ? encode_float(format, static_cast<float>(value) / 4)
                               : encode_int(format, value);
      const auto* start = reinterpret_cast<const std::byte*>(&raw);
      setup.memory.insert(setup.memory.end(), start, start + element_bytes(format));
    }
    setup.memory.resize((setup.memory.size() + 127) / 128 * 128);
  }
  return setup;
}

Bytes execute(const Setup& setup, int threads) {
  ThreadPool pool(threads);
  Executor executor(pool);
  Bytes memory = setup.memory;
  executor.run(*setup.program, setup.bindings, memory.data());
  return memory;
}

Bytes interpret(const Setup& setup) {
  Bytes memory = setup.memory;
  Interpreter(*setup.program, setup.bindings, memory).run();
  return memory;
}

}  // namespace

TEST(random_programs_give_the_bits_of_the_interpreter) {
  RandomPrograms programs(20240601);
  int effective = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Setup setup = bind(programs.next(), seed);
    const Bytes result = execute(setup, 1);
    effective += result != setup.memory;
    const bool same = result == interpret(setup);
    CHECK(same);
    if (!same) {
      std::fprintf(stderr, "random program %llu differs\n", static_cast<unsigned long long>(seed));
      return;
    }
  }
  CHECK(effective > 2500);  // the rest wrote to scratchpads only
}

// x[rows, columns] + bias[columns], 64 columns per stick, tiles outermost.
TEST(bias_add_broadcasts_a_stick_over_rows) {
  constexpr int64_t kRows = 300, kTiles = 3;
  ProgramBuilder builder;
  const auto format = DataFormat::SEN169_FP16;
  const uint32_t x = builder.address(kTiles * kRows * 128);
  const uint32_t bias = builder.address(kTiles * 128);
  const uint32_t y = builder.address(kTiles * kRows * 128, true);
  builder.run(builder.step(
      Opcode::add, 1, {kTiles, kRows},
      {builder.device(x, format, {kRows * 128, 128}), builder.device(bias, format, {128, 0})},
      builder.device(y, format, {kRows * 128, 128})));
  const Setup setup = bind(builder, 1);
  CHECK(execute(setup, 1) == interpret(setup));
}

// A chain through the scratchpads, inside a loop, on all cores.
TEST(a_core_carries_its_scratchpad_through_a_loop) {
  constexpr int64_t kSticks = 5, kLoops = 3, kSlice = kSticks * 128;
  ProgramBuilder builder;
  const auto format = DataFormat::SEN169_FP16;
  std::vector<int64_t> bases;
  for (int core = 0; core < kCores; ++core) bases.push_back(core * kLoops * kSlice);
  const uint32_t x = builder.address(kCores * kLoops * kSlice);
  const uint32_t y = builder.address(kCores * kLoops * kSlice, true);
  OperandRecord from = builder.device(x, format, {128}, bases);
  OperandRecord to = builder.device(y, format, {128}, bases);
  from.loop_stride[0] = to.loop_stride[0] = kSlice;
  const auto lx =
      builder.operand(Space::Lx, 0, DataFormat::IEEE_FP32, Lanes::Vector, {1024}, {256});
  OperandRecord wide = lx;
  wide.tile_stride = 128;
  const uint32_t all = 0xFFFFFFFF;
  const uint32_t first = builder.step(Opcode::mul, all, {kSticks}, {from, from}, wide);
  const uint32_t second = builder.step(Opcode::add, all, {kSticks}, {wide, from}, to);
  builder.loop(kLoops, 2);
  builder.run(first);
  builder.run(second);
  const Setup setup = bind(builder, 2);
  CHECK_EQ(setup.program->lx_high_water[31], 1024 + kSticks * 256);
  const Bytes expected = interpret(setup);
  CHECK(execute(setup, 1) == expected);
  CHECK(execute(setup, 3) == expected);
}

// A Matmul of scratchpads runs where its core runs, one of device memory for all cores at once.
TEST(a_matmul_in_the_scratchpads_gives_the_bits_of_one_in_device_memory) {
  constexpr int64_t kRows = 20, kDepth = 64, kColumnSticks = 2;
  constexpr int64_t kA = kRows * 128, kB = kDepth * kColumnSticks * 128;
  constexpr int64_t kC = kRows * kColumnSticks * 128;
  const auto format = DataFormat::SEN169_FP16;
  const auto result_of = [&](bool is_lx, int threads) {
    ProgramBuilder builder;
    std::vector<int64_t> a_bases, b_bases, c_bases;
    for (int core = 0; core < kCores; ++core) {
      a_bases.push_back(core * kA);
      b_bases.push_back(core * kB);
      c_bases.push_back(core * kC);
    }
    const uint32_t a = builder.address(kCores * kA);
    const uint32_t b = builder.address(kCores * kB);
    const uint32_t c = builder.address(kCores * kC, true);
    const auto lx = [&](int64_t base, const std::vector<int64_t>& stride) {
      return builder.operand(Space::Lx, 0, format, Lanes::Vector, {base}, stride);
    };
    const uint32_t all = 0xFFFFFFFF;
    builder.run(builder.step(Opcode::identity, all, {kDepth * kColumnSticks},
                             {builder.device(b, format, {128}, b_bases)}, lx(0, {128})));
    // Rows, sticks of n, sticks of k.
    OperandRecord second =
        is_lx ? lx(0, {0, 128, 0}) : builder.device(b, format, {0, 128, 0}, b_bases);
    second.tile_stride = kColumnSticks * 128;
    const uint32_t product = builder.step(Opcode::batchmatmul, all, {kRows, kColumnSticks, 1},
                                          {builder.device(a, format, {128, 0, 0}, a_bases), second},
                                          lx(kB, {kColumnSticks * 128, 128, 0}), StepKind::Matmul);
    builder.steps[product].stick_dim = 1;
    builder.steps[product].lane_dim = 2;
    builder.steps[product].reduced = 4;
    builder.run(product);
    builder.run(builder.step(Opcode::neg, all, {kRows * kColumnSticks}, {lx(kB, {128})},
                             builder.device(c, format, {128}, c_bases)));
    return execute(bind(builder, 4), threads);
  };
  const Bytes expected = result_of(false, 1);
  for (const int threads : {1, 2, 5}) CHECK(result_of(true, threads) == expected);
}

TEST(large_steps_give_the_same_bits_for_any_number_of_threads) {
  constexpr int64_t kTiles = 8, kRows = 1000;
  for (const uint32_t cores : {1U, 5U, 0xFFFFFFFFU}) {
    ProgramBuilder builder;
    const int count = std::popcount(cores);
    const int64_t slice = kTiles * kRows * 128;
    std::vector<int64_t> bases, wide_bases;
    for (int i = 0; i < count; ++i) {
      bases.push_back(i * slice);
      wide_bases.push_back(i * 2 * slice);
    }
    const uint32_t x = builder.address(count * slice);
    const uint32_t y = builder.address(count * 2 * slice, true, DataFormat::IEEE_FP32);
    OperandRecord out =
        builder.device(y, DataFormat::IEEE_FP32, {2 * kRows * 128, 128}, wide_bases);
    out.tile_stride = kRows * 128;
    const auto in = builder.device(x, DataFormat::SEN169_FP16, {kRows * 128, 128}, bases);
    builder.run(builder.step(Opcode::mul, cores, {kTiles, kRows}, {in, in}, out));
    const Setup setup = bind(builder, cores);
    const Bytes expected = execute(setup, 1);
    CHECK(execute(setup, 2) == expected);
    CHECK(execute(setup, 7) == expected);
    if (cores == 1) CHECK(expected == interpret(setup));
  }
}

// A step that writes one stick over and over: the last iteration wins, whatever the threads.
TEST(a_repeated_output_is_written_in_order) {
  constexpr int64_t kRows = 5000;
  ProgramBuilder builder;
  const uint32_t x = builder.address(kRows * 128);
  const uint32_t y = builder.address(128, true);
  builder.run(builder.step(Opcode::abs, 1, {kRows},
                           {builder.device(x, DataFormat::SEN169_FP16, {128})},
                           builder.device(y, DataFormat::SEN169_FP16, {0})));
  const Setup setup = bind(builder, 3);
  const Bytes expected = interpret(setup);
  CHECK(execute(setup, 1) == expected);
  CHECK(execute(setup, 4) == expected);
}

TEST(a_barrier_lets_a_core_read_what_another_wrote) {
  constexpr int64_t kSticks = 1200;
  ProgramBuilder builder;
  const auto format = DataFormat::SEN169_FP16;
  std::vector<int64_t> forward, backward;
  for (int i = 0; i < kCores; ++i) {
    forward.push_back(i * kSticks * 128);
    backward.push_back((kCores - 1 - i) * kSticks * 128);
  }
  const uint32_t x = builder.address(kCores * kSticks * 128);
  const uint32_t y = builder.address(kCores * kSticks * 128, true);
  const uint32_t z = builder.address(kCores * kSticks * 128, true);
  const uint32_t first =
      builder.step(Opcode::neg, 0xFFFFFFFF, {kSticks}, {builder.device(x, format, {128}, forward)},
                   builder.device(y, format, {128}, forward));
  const uint32_t second =
      builder.step(Opcode::abs, 0xFFFFFFFF, {kSticks}, {builder.device(y, format, {128}, backward)},
                   builder.device(z, format, {128}, forward));
  builder.steps[second].flags = kBarrierBefore;
  builder.loop(2, 2);
  builder.run(first);
  builder.run(second);
  const Setup setup = bind(builder, 4);
  const Bytes expected = interpret(setup);
  CHECK(execute(setup, 1) == expected);
  CHECK(execute(setup, 4) == expected);
}

TEST(restickify_transposes_a_large_matrix) {
  constexpr int64_t kSide = 256;  // [4, 256, 64] both ways, the stick moved to the other dimension
  ProgramBuilder builder;
  const auto format = DataFormat::SEN169_FP16;
  const uint32_t x = builder.address(kSide * kSide * 2);
  const uint32_t y = builder.address(kSide * kSide * 2, true);
  // Dimensions: row tile, row lane, column tile, column lane.
  const std::vector<int64_t> rows = {64 * 128, 128, kSide * 128, 2};
  const std::vector<int64_t> columns = {kSide * 128, 2, 64 * 128, 128};
  builder.run(builder.step(Opcode::identity, 1, {4, 64, 4, 64},
                           {builder.operand(Space::Device, x, format, Lanes::Element, {0}, rows)},
                           builder.operand(Space::Device, y, format, Lanes::Element, {0}, columns),
                           StepKind::Restickify));
  const Setup setup = bind(builder, 5);
  const Bytes expected = interpret(setup);
  CHECK(execute(setup, 1) == expected);
  CHECK(execute(setup, 3) == expected);
}
