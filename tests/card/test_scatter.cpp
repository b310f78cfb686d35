// Scatter steps, and Gather steps that go element by element, against an interpreter.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/driver.h"
#include "check.h"
#include "launches.h"
#include "tables_and_rows.h"

namespace {

using namespace spyre;
using namespace spyre::testing;

// Makes every index of a random program one of the table's rows.
void fix_indices(Launch& launch) {
  const Program& program = *launch.program;
  const OperandRecord& index = program.operands[program.steps[0].first_operand + 1];
  const MaskRecord& mask = program.masks[0];
  const int64_t rows =
      mask.is_symbol != 0 ? program.symbols[mask.valid].bytes : program.extents[mask.valid];
  for (int64_t i = 0; i + 4 <= program.symbols[index.symbol].bytes; i += 4) {
    uint32_t value = 0;
    std::memcpy(&value, launch.data(index.symbol) + i, 4);
    value %= static_cast<uint32_t>(rows);
    std::memcpy(launch.data(index.symbol) + i, &value, 4);
  }
}

template <typename Next>
void compare(int count, Next next) {
  for (int i = 0; i < count; ++i) {
    Launch on_card(next(), i);
    fix_indices(on_card);
    Launch modelled = on_card;
    on_card.run(1 + i % 3);
    RowModel(*modelled.program, modelled.bindings, modelled.memory).run();
    CHECK(on_card.memory == modelled.memory);
  }
}

// `count` numbers of a source into a table of 5, fp32 both.
ProgramBuilder scatter_program(Opcode opcode, int64_t count) {
  ProgramBuilder builder;
  const auto format = DataFormat::IEEE_FP32;
  const int64_t bytes = (4 * count + kStickBytes - 1) / kStickBytes * kStickBytes;
  const uint32_t x = builder.address(bytes, false, format);
  const uint32_t index = builder.address(bytes, false, DataFormat::IEEE_INT32);
  const uint32_t table = builder.address(kStickBytes, true, format);
  const auto from = builder.operand(Space::Device, x, format, Lanes::Element, {0}, {4});
  const auto which =
      builder.operand(Space::Device, index, DataFormat::IEEE_INT32, Lanes::Element, {0}, {4});
  auto to = builder.operand(Space::Device, table, format, Lanes::Element, {0}, {0});
  to.tile_stride = 4;
  builder.run(builder.step(opcode, 1, {count}, {from, which}, to, StepKind::Scatter));
  builder.mask(kNoStickDim, 5);
  return builder;
}

std::vector<float> scattered(Opcode opcode, const std::vector<float>& source,
                             const std::vector<int32_t>& index, const std::vector<float>& table) {
  Launch launch(scatter_program(opcode, static_cast<int64_t>(source.size())), 1);
  std::memcpy(launch.data(0), source.data(), source.size() * 4);
  std::memcpy(launch.data(1), index.data(), index.size() * 4);
  std::memcpy(launch.data(2), table.data(), table.size() * 4);
  launch.run(2);
  std::vector<float> result(table.size());
  std::memcpy(result.data(), launch.data(2), table.size() * 4);
  return result;
}

}  // namespace

TEST(random_gathers_by_element_give_the_bits_of_the_interpreter) {
  RandomRows programs(31);
  compare(400, [&] { return programs.gather_elements(); });
}

TEST(random_scatters_give_the_bits_of_the_interpreter) {
  RandomRows programs(32);
  compare(600, [&] { return programs.scatter(); });
}

TEST(the_last_of_several_writes_to_one_place_stays) {
  std::vector<float> source(1000);
  std::vector<int32_t> index(1000);
  for (int i = 0; i < 1000; ++i) {
    source[i] = static_cast<float>(i);
    index[i] = i % 4;
  }
  const std::vector<float> expected{996, 997, 998, 999, 7};
  CHECK(scattered(Opcode::scatter, source, index, {0, 0, 0, 0, 7}) == expected);
}

TEST(sums_add_to_what_the_table_holds) {
  const std::vector<float> expected{1, 2 + 10 + 30, 3, 4, 5 + 20};
  CHECK(scattered(Opcode::scatter_add, {10, 20, 30}, {1, 4, 1}, {1, 2, 3, 4, 5}) == expected);
}

TEST(nan_wins_in_extrema) {
  const float nan = NAN;
  for (const Opcode opcode : {Opcode::scatter_amax, Opcode::scatter_amin}) {
    const auto result = scattered(opcode, {nan, 1, 2}, {0, 0, 1}, {5, nan, 3, 4, 5});
    CHECK(std::isnan(result[0]) && std::isnan(result[1]));
    CHECK_EQ(result[2], 3.0F);
  }
}

TEST(an_index_outside_is_a_fault_and_nothing_outside_is_written) {
  for (const int32_t wrong : {5, -1, 2147483647, -2147483647 - 1}) {
    Launch launch(scatter_program(Opcode::scatter, 3), 1);
    const std::array<int32_t, 3> index{0, wrong, 1};
    std::memcpy(launch.data(1), index.data(), sizeof(index));
    const Launch before = launch;
    try {
      launch.run(1);
      CHECK(false);
    } catch (const CardFault& fault) {
      CHECK(fault.kind == CardFault::Kind::IndexError);
      const std::string what = wrong < 0 ? "an index" : "index " + std::to_string(wrong);
      CHECK_EQ(std::string(fault.what()), what +
                                              " is out of range for a table of 5 rows (core 0, "
                                              "iteration 1)");
    }
    const size_t table = launch.bindings[2].value;
    CHECK(std::equal(launch.memory.begin(), launch.memory.begin() + static_cast<int64_t>(table),
                     before.memory.begin()));
    CHECK(std::memcmp(launch.data(2) + 20, before.memory.data() + table + 20, kStickBytes - 20) ==
          0);
  }
}
