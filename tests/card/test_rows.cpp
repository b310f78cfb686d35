// Argsort and Scan steps against an interpreter that goes element by element.
#include <cstring>
#include <numeric>
#include <vector>

#include "check.h"
#include "launches.h"
#include "tables_and_rows.h"

namespace {

using namespace spyre;
using namespace spyre::testing;

template <typename Next>
void compare(int count, Next next) {
  for (int i = 0; i < count; ++i) {
    Launch on_card(next(), i);
    Launch modelled = on_card;
    on_card.run(1 + i % 3);
    RowModel(*modelled.program, modelled.bindings, modelled.memory).run();
    CHECK(on_card.memory == modelled.memory);
  }
}

// One row of fp32 (or int32), element after element.
ProgramBuilder row(Opcode opcode, StepKind kind, int64_t length) {
  ProgramBuilder builder;
  const std::string_view signature = opcode_info(static_cast<uint16_t>(opcode)).signature;
  const auto format = [](char domain) {
    return domain == 'F' ? DataFormat::IEEE_FP32 : DataFormat::IEEE_INT32;
  };
  const int64_t bytes = (4 * length + kStickBytes - 1) / kStickBytes * kStickBytes;
  const uint32_t x = builder.address(bytes, false, format(signature[0]));
  const uint32_t y = builder.address(bytes, true, format(signature[2]));
  const auto from =
      builder.operand(Space::Device, x, format(signature[0]), Lanes::Element, {0}, {4});
  const auto to = builder.operand(Space::Device, y, format(signature[2]), Lanes::Element, {0}, {4});
  builder.run(builder.step(opcode, 1, {length}, {from}, to, kind));
  builder.steps[0].reduced = 1;
  return builder;
}

template <typename To, typename From>
std::vector<To> run_row(Opcode opcode, StepKind kind, const std::vector<From>& values) {
  Launch launch(row(opcode, kind, static_cast<int64_t>(values.size())), 1);
  std::memcpy(launch.data(0), values.data(), values.size() * 4);
  launch.run(1);
  std::vector<To> result(values.size());
  std::memcpy(result.data(), launch.data(1), values.size() * 4);
  return result;
}

using Positions = std::vector<int32_t>;
const std::vector<float> kMixed{2, NAN, -1, 2, -INFINITY, -0.0F, 0, INFINITY, -NAN, -1};

}  // namespace

TEST(random_argsorts_give_the_bits_of_the_interpreter) {
  RandomRows programs(41);
  compare(500, [&] { return programs.argsort(); });
}

TEST(random_scans_give_the_bits_of_the_interpreter) {
  RandomRows programs(42);
  for (const auto isa : {kernels::Isa::Baseline, kernels::Isa::V3, kernels::Isa::V4}) {
    if (!kernels::isa_available(isa)) continue;
    const IsaScope scope(isa);
    compare(300, [&] { return programs.scan(); });
  }
}

TEST(nan_is_the_largest_zeros_are_equal_and_equal_ones_keep_their_order) {
  const Positions up{4, 2, 9, 5, 6, 0, 3, 7, 1, 8};
  const Positions down{1, 8, 7, 0, 3, 5, 6, 2, 9, 4};
  CHECK(run_row<int32_t>(Opcode::argsort, StepKind::Argsort, kMixed) == up);
  CHECK(run_row<int32_t>(Opcode::argsort_descending, StepKind::Argsort, kMixed) == down);
}

TEST(integers_sort_with_their_sign) {
  const Positions values{3, -2147483647 - 1, 0, -1, 2147483647, 3};
  const Positions up{1, 3, 2, 0, 5, 4}, down{4, 0, 5, 2, 3, 1};
  CHECK(run_row<int32_t>(Opcode::argsort_int, StepKind::Argsort, values) == up);
  CHECK(run_row<int32_t>(Opcode::argsort_int_descending, StepKind::Argsort, values) == down);
}

// The ways of sorting change with the length, but not the order.
TEST(long_rows_sort_as_short_ones) {
  std::mt19937 random(5);
  for (const int length : {1023, 1024, 1025, 70000}) {
    std::vector<int32_t> values(length);
    for (int32_t& value : values) value = static_cast<int32_t>(random() % 1000) - 500;
    Positions expected(length);
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](int32_t a, int32_t b) { return values[a] < values[b]; });
    CHECK(run_row<int32_t>(Opcode::argsort_int, StepKind::Argsort, values) == expected);
  }
}

TEST(running_extrema_take_the_later_of_equal_elements_and_the_last_nan) {
  const std::vector<float> values{1, 3, 2, 3, NAN, 5, NAN, 4};
  const Positions largest{0, 1, 1, 3, 4, 4, 6, 6}, smallest{0, 0, 0, 0, 4, 4, 6, 6};
  CHECK(run_row<int32_t>(Opcode::cummax_index, StepKind::Scan, values) == largest);
  CHECK(run_row<int32_t>(Opcode::cummin_index, StepKind::Scan, values) == smallest);
}

TEST(running_sums_wrap_in_int32) {
  const Positions values{2147483647, 1, 5};
  const Positions expected{2147483647, -2147483647 - 1, -2147483647 + 4};
  CHECK(run_row<int32_t>(Opcode::cumsum_int, StepKind::Scan, values) == expected);
}

TEST(a_running_log_of_sums_survives_infinities) {
  const std::vector<float> values{-INFINITY, 0, 0, INFINITY, 1, NAN};
  const auto result = run_row<float>(Opcode::logcumsumexp, StepKind::Scan, values);
  CHECK_EQ(result[0], -INFINITY);
  CHECK_EQ(result[1], 0.0F);
  CHECK_EQ(result[2], std::log(2.0F));
  CHECK(result[3] == INFINITY && result[4] == INFINITY);
  CHECK(std::isnan(result[5]));
}
