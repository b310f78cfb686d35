// Reduction steps against an interpreter that goes element by element.
#include <cstring>
#include <limits>
#include <vector>

#include "../../torch_spyre/csrc/card/executor.h"
#include "../../torch_spyre/csrc/card/kernels.h"
#include "accumulations.h"
#include "check.h"
#include "launches.h"

namespace {

using namespace spyre;
using namespace spyre::testing;

constexpr auto kHalf = DataFormat::SEN169_FP16;
constexpr auto kFloat = DataFormat::IEEE_FP32;

// The sum (or another reduction) of each of `rows` rows of `sticks` fp32 sticks on one core.
ProgramBuilder row_program(Opcode opcode, int64_t rows, int64_t sticks, int64_t valid) {
  ProgramBuilder builder;
  const uint32_t x = builder.address(rows * sticks * kStickBytes, false, kFloat);
  const uint32_t y = builder.address(rows * kStickBytes, true, kFloat);
  // Tiles outermost, as a tiled layout has them; rows follow each other.
  auto from = builder.device(x, kFloat, {rows * kStickBytes, kStickBytes});
  auto to = builder.device(y, kFloat, {0, kStickBytes});
  to.lanes = static_cast<uint8_t>(Lanes::First);
  builder.run(builder.step(opcode, 1, {sticks, rows}, {from}, to, StepKind::Reduction));
  builder.steps[0].stick_dim = 0;
  builder.steps[0].reduced = 0b01;
  if (valid < sticks * 32) builder.mask(0, valid);
  return builder;
}

// The result for one row with these elements.
float reduce_row(Opcode opcode, const std::vector<float>& row) {
  const auto sticks = static_cast<int64_t>(row.size() + 31) / 32;
  Launch launch(row_program(opcode, 1, sticks, static_cast<int64_t>(row.size())), 1);
  std::memcpy(launch.data(0), row.data(), row.size() * sizeof(float));
  launch.run(1);
  float result = 0;
  std::memcpy(&result, launch.data(1), sizeof(result));
  return result;
}

}  // namespace

TEST(random_reductions_give_the_bits_of_the_interpreter) {
  RandomAccumulations programs(11);
  for (int i = 0; i < 600; ++i) {
    const Launch launch(programs.reduction(), i);
    for (const kernels::Isa isa : {kernels::Isa::Baseline, kernels::Isa::V3, kernels::Isa::V4}) {
      if (!kernels::isa_available(isa)) continue;
      const IsaScope scope(isa);
      Launch on_card = launch;
      on_card.run(1 + i % 3);
      Launch modelled = launch;
      AccumulationModel(*modelled.program, modelled.bindings, modelled.memory).run();
      CHECK(on_card.memory == modelled.memory);
    }
  }
}

TEST(the_number_of_threads_does_not_change_a_bit) {
  const Launch launch(row_program(Opcode::sum, 333, 40, 40 * 32 - 7), 5);
  Launch alone = launch;
  alone.run(1);
  for (const int threads : {2, 5}) {
    Launch shared = launch;
    shared.run(threads);
    CHECK(shared.memory == alone.memory);
  }
}

TEST(lanes_are_combined_by_a_binary_tree) {
  // 2^25 + 1 - 2^25: which pair meets first decides whether the 1 survives.
  std::vector<float> row(32, 0);
  row[0] = 33554432.0F;
  row[16] = -33554432.0F;
  row[1] = 1;
  CHECK_EQ(reduce_row(Opcode::sum, row), 1.0F);
  row[16] = 0;
  row[8] = 1;
  row[1] = 0;
  row[4] = -33554432.0F;
  CHECK_EQ(reduce_row(Opcode::sum, row), 0.0F);
}

TEST(what_a_mask_leaves_out_does_not_count) {
  const float huge = std::numeric_limits<float>::max();
  Launch launch(row_program(Opcode::amax, 1, 2, 33), 1);
  std::vector<float> row(64, huge);
  for (int i = 0; i < 33; ++i) row[i] = static_cast<float>(-i) - 1;
  std::memcpy(launch.data(0), row.data(), row.size() * sizeof(float));
  launch.run(1);
  float result = 0;
  std::memcpy(&result, launch.data(1), sizeof(result));
  CHECK_EQ(result, -1.0F);
}

TEST(nan_wins_over_every_number) {
  for (const size_t place : {size_t{0}, size_t{5}, size_t{40}}) {
    for (const Opcode opcode : {Opcode::amax, Opcode::amin, Opcode::sum, Opcode::prod}) {
      std::vector<float> row(41, 1);
      row[place] = std::numeric_limits<float>::quiet_NaN();
      CHECK(std::isnan(reduce_row(opcode, row)));
    }
  }
}

TEST(nothing_gives_the_neutral_element) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto neutral = [](Opcode opcode) {
    Launch launch(row_program(opcode, 1, 1, 0), 3);
    launch.run(1);
    float result = 0;
    std::memcpy(&result, launch.data(1), sizeof(result));
    return result;
  };
  CHECK_EQ(neutral(Opcode::sum), 0.0F);
  CHECK_EQ(neutral(Opcode::prod), 1.0F);
  CHECK_EQ(neutral(Opcode::amax), -infinity);
  CHECK_EQ(neutral(Opcode::amin), infinity);
}

TEST(a_first_result_has_zeros_in_its_other_lanes) {
  Launch launch(row_program(Opcode::sum, 3, 2, 64), 9);
  launch.run(1);
  for (int row = 0; row < 3; ++row) {
    for (int byte = 4; byte < kStickBytes; ++byte) {
      CHECK_EQ(static_cast<int>(launch.data(1)[row * kStickBytes + byte]), 0);
    }
  }
}

TEST(sums_of_half_precision_are_rounded_once) {
  // 1 + 4096 times 2^-11: each term alone would be lost in SEN169.
  ProgramBuilder builder;
  const uint32_t x = builder.address(4097 * kStickBytes), y = builder.address(kStickBytes, true);
  const auto from = builder.device(x, kHalf, {kStickBytes});
  const auto to = builder.device(y, kHalf, {0});
  builder.run(builder.step(Opcode::sum, 1, {4097}, {from}, to, StepKind::Reduction));
  builder.steps[0].reduced = 1;
  Launch launch(builder, 1);
  for (int i = 0; i < 4097 * 64; ++i) {
    const auto raw = static_cast<uint16_t>(encode_float(kHalf, i < 64 ? 1.0F : 0x1p-11F));
    std::memcpy(launch.data(0) + i * 2, &raw, 2);
  }
  launch.run(2);
  uint16_t raw = 0;
  std::memcpy(&raw, launch.data(1) + 126, 2);
  CHECK_EQ(decode_float(kHalf, raw), 3.0F);
}
