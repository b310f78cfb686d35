// Rings: cores that each accumulate a part of the same results. Against an interpreter that goes
// element by element, and by examples whose order of additions shows in the bits.
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/driver.h"
#include "../../torch_spyre/csrc/card/executor.h"
#include "../../torch_spyre/csrc/card/kernels.h"
#include "../../torch_spyre/csrc/cost/cost.h"
#include "accumulations.h"
#include "check.h"
#include "launches.h"

namespace {

using namespace spyre;
using namespace spyre::testing;

constexpr auto kHalf = DataFormat::SEN169_FP16;
constexpr auto kFloat = DataFormat::IEEE_FP32;

uint32_t first_cores(int count) { return static_cast<uint32_t>((uint64_t{1} << count) - 1); }

std::vector<int64_t> steps(int count, int64_t stride) {
  std::vector<int64_t> bases(count);
  for (int i = 0; i < count; ++i) bases[i] = i * stride;
  return bases;
}

// The sum of each of `rows` rows of sticks of `format`, `sticks` of them on each of `cores` cores.
ProgramBuilder row_sums(int cores, int64_t sticks, int64_t rows, DataFormat format,
                        Opcode opcode = Opcode::sum) {
  ProgramBuilder builder;
  const uint32_t x = builder.address(cores * sticks * rows * kStickBytes, false, format);
  const uint32_t y = builder.address(rows * kStickBytes, true, format);
  const auto from = builder.device(x, format, {rows * kStickBytes, kStickBytes},
                                   steps(cores, sticks * rows * kStickBytes));
  auto to = builder.device(y, format, {0, kStickBytes});
  to.lanes = static_cast<uint8_t>(Lanes::First);
  builder.run(
      builder.step(opcode, first_cores(cores), {sticks, rows}, {from}, to, StepKind::Reduction));
  builder.steps[0].stick_dim = 0;
  builder.steps[0].reduced = 0b01;
  builder.steps[0].ring = static_cast<uint8_t>(cores);
  return builder;
}

// [rows, k] @ [k, n] of fp32: a stick of n on each of `n_cores`, a stick of k on each of their
// `k_cores` partners.
ProgramBuilder product(int64_t rows, int n_cores, int k_cores, DataFormat format = kFloat) {
  ProgramBuilder builder;
  const int64_t lanes = elems_per_stick(format);
  const uint32_t a = builder.address(k_cores * rows * kStickBytes, false, format);
  const uint32_t b = builder.address(n_cores * k_cores * lanes * kStickBytes, false, format);
  const uint32_t c = builder.address(n_cores * rows * kStickBytes, true, format);
  std::vector<int64_t> a_bases, b_bases, c_bases;
  for (int n = 0; n < n_cores; ++n) {
    for (int k = 0; k < k_cores; ++k) {
      a_bases.push_back(k * rows * kStickBytes);
      b_bases.push_back((n * k_cores + k) * lanes * kStickBytes);
      c_bases.push_back(n * rows * kStickBytes);
    }
  }
  // Rows, sticks of n, sticks of k.
  const auto left = builder.device(a, format, {kStickBytes, 0, 0}, a_bases);
  auto right = builder.device(b, format, {0, 0, 0}, b_bases);
  right.tile_stride = kStickBytes;
  const auto to = builder.device(c, format, {kStickBytes, 0, 0}, c_bases);
  builder.run(builder.step(Opcode::batchmatmul, first_cores(n_cores * k_cores), {rows, 1, 1},
                           {left, right}, to, StepKind::Matmul));
  builder.steps[0].stick_dim = 1;
  builder.steps[0].lane_dim = 2;
  builder.steps[0].reduced = 0b100;
  builder.steps[0].ring = static_cast<uint8_t>(k_cores);
  return builder;
}

float float_at(Launch& launch, size_t symbol, int64_t offset = 0) {
  float value = 0;
  std::memcpy(&value, launch.data(symbol) + offset, sizeof(value));
  return value;
}

// The sum of three numbers, one on each core; the other lanes are zeros.
float sum_over_cores(const std::vector<float>& numbers) {
  Launch launch(row_sums(static_cast<int>(numbers.size()), 1, 1, kFloat), 1);
  std::fill_n(launch.data(0), numbers.size() * kStickBytes, std::byte{0});
  for (size_t i = 0; i < numbers.size(); ++i) {
    std::memcpy(launch.data(0) + i * kStickBytes, &numbers[i], sizeof(float));
  }
  launch.run(2);
  return float_at(launch, 1);
}

std::string reason(const ProgramBuilder& builder) {
  try {
    load_program(builder.bytes());
  } catch (const ProgramError& error) {
    return error.what();
  }
  return "accepted";
}

template <typename Change>
bool says(const std::string& part, ProgramBuilder builder, Change change) {
  change(builder);
  const std::string text = reason(builder);
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "  got: %s\n", text.c_str());
  return false;
}

void check_against_the_interpreter(const ProgramBuilder& builder, int i) {
  const Launch launch(builder, i);
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

}  // namespace

TEST(random_rings_give_the_bits_of_the_interpreter) {
  RandomAccumulations programs(17);
  for (int i = 0; i < 400; ++i) {
    check_against_the_interpreter(programs.ring_reduction(), i);
    check_against_the_interpreter(programs.ring_matmul(), i);
  }
}

TEST(partners_are_added_in_core_order) {
  constexpr float kBig = 33554432;  // 2^25: to add 1 to it changes nothing
  CHECK_EQ(sum_over_cores({kBig, -kBig, 1}), 1.0F);
  CHECK_EQ(sum_over_cores({kBig, 1, -kBig}), 0.0F);
  CHECK_EQ(sum_over_cores({1, kBig, -kBig}), 0.0F);
}

// The rows of the first operand are ones; B has these numbers, one per partner.
TEST(partial_products_are_added_in_core_order) {
  constexpr float kBig = 33554432, kOne = 1;
  for (const auto& [numbers, sum] :
       {std::pair(std::vector{kBig, -kBig, 1.0F}, 1.0F), {std::vector{kBig, 1.0F, -kBig}, 0.0F}}) {
    Launch launch(product(2, 1, 3), 1);
    for (int i = 0; i < 3 * 2 * 32; ++i) std::memcpy(launch.data(0) + i * 4, &kOne, 4);
    std::fill_n(launch.data(1), 3 * 32 * kStickBytes, std::byte{0});
    for (int k = 0; k < 3; ++k) {
      std::memcpy(launch.data(1) + k * 32 * kStickBytes + 4, &numbers[k], 4);
    }
    launch.run(2);
    CHECK_EQ(float_at(launch, 2, 4), sum);
    CHECK_EQ(float_at(launch, 2, kStickBytes + 4), sum);
    CHECK_EQ(float_at(launch, 2, 0), 0.0F);
  }
}

TEST(lanes_are_combined_after_the_ring) {
  // Lane 0 of one core and lane 0 of the other meet first, then lanes 0 and 16.
  constexpr float kBig = 33554432, kOne = 1, kLess = -kBig;
  Launch launch(row_sums(2, 1, 1, kFloat), 1);
  std::fill_n(launch.data(0), 2 * kStickBytes, std::byte{0});
  std::memcpy(launch.data(0), &kBig, 4);
  std::memcpy(launch.data(0) + 16 * 4, &kOne, 4);
  std::memcpy(launch.data(0) + kStickBytes, &kLess, 4);
  launch.run(1);
  CHECK_EQ(float_at(launch, 1), 1.0F);
}

TEST(results_of_a_ring_are_rounded_once) {
  // 1 + 8 x 2^-12, spread over nine cores: each term alone would be lost in SEN169.
  Launch launch(row_sums(9, 1, 1, kHalf), 1);
  for (int i = 0; i < 9 * 64; ++i) {
    const float value = i % 64 != 0 ? 0.0F : i == 0 ? 1.0F : 0x1p-12F;
    const auto raw = static_cast<uint16_t>(encode_float(kHalf, value));
    std::memcpy(launch.data(0) + i * 2, &raw, 2);
  }
  launch.run(2);
  uint16_t raw = 0;
  std::memcpy(&raw, launch.data(1), 2);
  CHECK_EQ(decode_float(kHalf, raw), 1 + 0x1p-9F);
}

TEST(the_number_of_threads_does_not_change_a_bit_of_a_ring) {
  for (const ProgramBuilder& builder : {row_sums(32, 70, 5, kHalf), row_sums(4, 9, 900, kFloat),
                                        product(70, 8, 4, kHalf), product(1, 1, 32, kHalf)}) {
    const Launch launch(builder, 3);
    Launch alone = launch;
    alone.run(1);
    for (const int threads : {2, 5}) {
      Launch shared = launch;
      shared.run(threads);
      CHECK(shared.memory == alone.memory);
    }
  }
}

TEST(every_partner_finds_the_results_in_its_own_scratchpad) {
  ProgramBuilder builder = row_sums(4, 2, 3, kFloat);
  OperandRecord& sum = builder.operands[1];
  sum.space = static_cast<uint8_t>(Space::Lx);
  const uint32_t y = builder.address(4 * 3 * kStickBytes, true, kFloat);
  OperandRecord held = builder.operand(Space::Lx, 0, kFloat, Lanes::First, {0}, {kStickBytes});
  const auto to = builder.device(y, kFloat, {kStickBytes}, steps(4, 3 * kStickBytes));
  builder.run(builder.step(Opcode::identity, 0b1111, {3}, {held}, to));
  for (const int threads : {1, 3}) {
    Launch launch(builder, 7);
    for (int i = 0; i < 4 * 2 * 3 * 32; ++i) {
      const auto value = static_cast<float>(i / 32 % 3);  // the number of the row
      std::memcpy(launch.data(0) + i * 4, &value, 4);
    }
    launch.run(threads);
    for (int core = 0; core < 4; ++core) {
      for (int row = 0; row < 3; ++row) {
        const auto expected = static_cast<float>(4 * 2 * 32 * row);
        CHECK_EQ(float_at(launch, 2, (core * 3 + row) * kStickBytes + 40), expected);
      }
    }
  }
}

TEST(rings_are_checked) {
  const ProgramBuilder sums = row_sums(4, 1, 2, kFloat);
  CHECK_EQ(reason(sums), std::string("accepted"));
  CHECK_EQ(reason(product(2, 2, 2)), std::string("accepted"));
  CHECK(
      says("rings of 3 cores can't be made of its 4", sums, [](auto& b) { b.steps[0].ring = 3; }));
  CHECK(says("rings of 1 cores", sums, [](auto& b) { b.steps[0].ring = 1; }));
  CHECK(says("rings of 8 cores", sums, [](auto& b) { b.steps[0].ring = 8; }));
  CHECK(says("padding must be 0", sums, [](auto& b) { b.steps[0].padding = 1; }));
  const auto with_rows = [](std::vector<int64_t> rows) {
    return [rows](ProgramBuilder& b) {
      b.steps[0].extent = static_cast<uint32_t>(b.extents.size());
      b.steps[0].extent_count = 4;
      b.extents.insert(b.extents.end(), rows.begin(), rows.end());
    };
  };
  CHECK(says("accepted", sums, with_rows({1, 2, 1, 2, 1, 2, 1, 2})));
  CHECK(says("different extents along dimension 1", sums, with_rows({1, 2, 1, 1, 1, 2, 1, 2})));
  CHECK(says("has nothing to do", sums, with_rows({1, 2, 0, 2, 1, 2, 1, 2})));
  CHECK(says("differ in whether they are tail cores", product(2, 2, 2),
             [](auto& b) { b.steps[0].tail_cores = 0b0010; }));
  CHECK(says("accepted", product(2, 2, 2), [](auto& b) { b.steps[0].tail_cores = 0b0011; }));
  CHECK(says("one place for results", product(2, 2, 2),
             [](auto& b) { b.bases[b.operands[2].base + 1] = kStickBytes; }));
  ProgramBuilder pointwise;
  const uint32_t x = pointwise.address(kStickBytes), y = pointwise.address(kStickBytes, true);
  const auto from = pointwise.device(x, kHalf, {0}), to = pointwise.device(y, kHalf, {0});
  pointwise.run(pointwise.step(Opcode::neg, 0b11, {1}, {from}, to));
  CHECK(says("only Reduction and Matmul", pointwise, [](auto& b) { b.steps[0].ring = 2; }));
}

TEST(partial_sums_take_their_time_on_the_ring) {
  constexpr int kCores4 = 4;
  constexpr int64_t kRows = 8;
  cost::Step expected;
  expected.traffic = cost::Traffic::Matmul;
  expected.cores = 2 * kCores4;
  expected.bytes_read = (kCores4 * kRows + 2 * kCores4 * 64) * kStickBytes;
  expected.bytes_written = 2 * kRows * kStickBytes;
  expected.a_bytes = kCores4 * kRows * kStickBytes;
  expected.b_bytes = int64_t{2} * kCores4 * 64 * kStickBytes;
  expected.a_broadcast = 2;
  expected.m = kRows;
  expected.n = expected.k = 64;
  expected.k_split = kCores4;
  expected.output_elements = kRows * 64;
  CHECK_EQ(cost::breakdown(expected).ring, 3 * 8 * 64 * 0.14);
  const auto program = load_program(product(kRows, 2, kCores4, kHalf).bytes());
  CHECK_EQ(program->nanoseconds, cost::nanoseconds(expected));
  CHECK_EQ(program->bytes_written, 2 * kRows * kStickBytes);
}

TEST(a_ring_of_reductions_sends_a_partial_result_per_lane) {
  cost::Step expected;
  expected.traffic = cost::Traffic::RowReduction;
  expected.rows = 3;
  expected.cores = 4;
  expected.bytes_read = int64_t{4} * 2 * 3 * kStickBytes;
  expected.bytes_written = 3 * kStickBytes;
  expected.sfp_elements = 2 * 3 * 64;
  expected.k_split = 4;
  expected.output_elements = 3 * 64;
  const auto program = load_program(row_sums(4, 2, 3, kHalf).bytes());
  CHECK_EQ(program->nanoseconds, cost::nanoseconds(expected));
}
