// Gather steps against an interpreter that goes element by element, and what a wrong index does.
#include <cstring>
#include <string>

#include "../../torch_spyre/csrc/card/driver.h"
#include "accumulations.h"
#include "check.h"
#include "launches.h"

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
  const int64_t bytes = program.symbols[index.symbol].bytes;
  for (int64_t i = 0; i + 4 <= bytes; i += 4) {
    uint32_t value = 0;
    std::memcpy(&value, launch.data(index.symbol) + i, 4);
    value %= static_cast<uint32_t>(rows);
    std::memcpy(launch.data(index.symbol) + i, &value, 4);
  }
}

// Four rows of a table of `rows`, two sticks each, which lie `rows` sticks apart.
ProgramBuilder embedding(int64_t rows) {
  ProgramBuilder builder;
  const uint32_t table = builder.address(2 * rows * kStickBytes);
  const uint32_t index = builder.address(kStickBytes, false, DataFormat::IEEE_INT32);
  const uint32_t y = builder.address(8 * kStickBytes, true);
  auto from = builder.device(table, DataFormat::SEN169_FP16, {rows * kStickBytes, 0});
  from.tile_stride = kStickBytes;
  auto which =
      builder.operand(Space::Device, index, DataFormat::IEEE_INT32, Lanes::Element, {0}, {0, 4});
  auto to = builder.device(y, DataFormat::SEN169_FP16, {4 * kStickBytes, kStickBytes});
  builder.run(builder.step(Opcode::gather, 1, {2, 4}, {from, which}, to, StepKind::Gather));
  builder.mask(kNoStickDim, rows);
  return builder;
}

Launch with_indices(std::vector<int32_t> indices) {
  Launch launch(embedding(5), 1);
  std::memcpy(launch.data(1), indices.data(), indices.size() * 4);
  return launch;
}

}  // namespace

TEST(random_gathers_give_the_bits_of_the_interpreter) {
  RandomAccumulations programs(3);
  for (int i = 0; i < 400; ++i) {
    Launch on_card(programs.gather(), i);
    fix_indices(on_card);
    Launch modelled = on_card;
    on_card.run(1 + i % 3);
    AccumulationModel(*modelled.program, modelled.bindings, modelled.memory).run();
    CHECK(on_card.memory == modelled.memory);
  }
}

TEST(a_row_is_all_its_sticks) {
  Launch launch = with_indices({4, 0, 4, 2});
  launch.run(1);
  for (int tile = 0; tile < 2; ++tile) {
    for (int i = 0; i < 4; ++i) {
      const int row = std::array{4, 0, 4, 2}[i];
      CHECK_EQ(std::memcmp(launch.data(2) + (tile * 4 + i) * kStickBytes,
                           launch.data(0) + (tile * 5 + row) * kStickBytes, kStickBytes),
               0);
    }
  }
}

TEST(an_index_outside_the_table_is_a_fault_that_names_it) {
  for (const int32_t wrong : {5, -1, 2147483647}) {
    Launch launch = with_indices({4, 0, wrong, 2});
    try {
      launch.run(1);
      CHECK(false);
    } catch (const CardFault& fault) {
      CHECK(fault.kind == CardFault::Kind::IndexError);
      const std::string what = wrong < 0 ? "an index" : "index " + std::to_string(wrong);
      CHECK_EQ(std::string(fault.what()), what +
                                              " is out of range for a table of 5 rows (core 0, "
                                              "iteration 0, 2)");
    }
  }
}
