// What the card accepts of Scatter, Argsort and Scan steps and of Gather steps by element, what it
// rejects and why, and the figures it derives.
#include <functional>
#include <string>

#include "../../torch_spyre/csrc/card/program.h"
#include "../../torch_spyre/csrc/cost/cost.h"
#include "check.h"
#include "tables_and_rows.h"

namespace {

using namespace spyre;
using namespace spyre::testing;

constexpr auto kHalf = DataFormat::SEN169_FP16;
constexpr auto kInt = DataFormat::IEEE_INT32;

std::string reason(const ProgramBuilder& builder) {
  try {
    load_program(builder.bytes());
  } catch (const ProgramError& error) {
    return error.what();
  }
  return "accepted";
}

std::string changed(ProgramBuilder builder, const std::function<void(ProgramBuilder&)>& change) {
  change(builder);
  return reason(builder);
}

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "  got: %s\n", text.c_str());
  return false;
}

OperandRecord element(ProgramBuilder& builder, uint32_t symbol, DataFormat format,
                      const std::vector<int64_t>& stride) {
  return builder.operand(Space::Device, symbol, format, Lanes::Element, {0}, stride);
}

// 40 elements of a table of 1000.
ProgramBuilder gather() {
  ProgramBuilder builder;
  const uint32_t table = builder.address(2048), index = builder.address(256, false, kInt);
  const uint32_t y = builder.address(128, true);
  auto from = element(builder, table, kHalf, {0});
  from.tile_stride = 2;
  const auto which = element(builder, index, kInt, {4});
  const auto to = element(builder, y, kHalf, {2});
  builder.run(builder.step(Opcode::gather, 1, {40}, {from, which}, to, StepKind::Gather));
  builder.mask(kNoStickDim, 1000);
  return builder;
}

// 40 elements into a table of 1000.
ProgramBuilder scatter(Opcode opcode) {
  ProgramBuilder builder;
  const uint32_t x = builder.address(128), index = builder.address(256, false, kInt);
  const uint32_t table = builder.address(2048, true);
  const auto from = element(builder, x, kHalf, {2});
  const auto which = element(builder, index, kInt, {4});
  auto to = element(builder, table, kHalf, {0});
  to.tile_stride = 2;
  builder.run(builder.step(opcode, 1, {40}, {from, which}, to, StepKind::Scatter));
  builder.mask(kNoStickDim, 1000);
  return builder;
}

// Six rows of 100 on two cores.
ProgramBuilder rows(Opcode opcode, StepKind kind, DataFormat result) {
  ProgramBuilder builder;
  const uint32_t x = builder.address(6 * 256), y = builder.address(6 * 512, true, result);
  const auto from =
      builder.operand(Space::Device, x, kHalf, Lanes::Element, {0, 3 * 256}, {256, 2});
  const auto to = builder.operand(Space::Device, y, result, Lanes::Element, {0, 3 * 512},
                                  {512, element_bytes(result)});
  builder.run(builder.step(opcode, 0b11, {3, 100}, {from}, to, kind));
  builder.steps[0].reduced = 0b10;
  return builder;
}
ProgramBuilder argsort() { return rows(Opcode::argsort, StepKind::Argsort, kInt); }

// Down 10 rows of 3 sticks.
ProgramBuilder scan() {
  ProgramBuilder builder;
  const uint32_t x = builder.address(30 * 128), y = builder.address(30 * 128, true);
  const auto from = builder.device(x, kHalf, {1280, 128});
  const auto to = builder.device(y, kHalf, {1280, 128});
  builder.run(builder.step(Opcode::cumsum, 1, {3, 10}, {from}, to, StepKind::Scan));
  builder.steps[0].stick_dim = 0;
  builder.steps[0].reduced = 0b10;
  return builder;
}

}  // namespace

TEST(each_kind_of_step_is_accepted) {
  for (const ProgramBuilder& builder : {gather(), scatter(Opcode::scatter), argsort(), scan()}) {
    CHECK_EQ(reason(builder), std::string("accepted"));
  }
  RandomRows programs(6);
  for (int i = 0; i < 300; ++i) {
    CHECK_EQ(reason(programs.gather_elements()), std::string("accepted"));
    CHECK_EQ(reason(programs.scatter()), std::string("accepted"));
    CHECK_EQ(reason(programs.argsort()), std::string("accepted"));
    CHECK_EQ(reason(programs.scan()), std::string("accepted"));
  }
}

TEST(gathers_by_element_are_checked) {
  const auto with = [](auto change) { return changed(gather(), change); };
  CHECK(says(with([](auto& b) { b.operands[2].lanes = 0, b.operands[2].stride[0] = 0; }),
             "operand 2: the result of a Gather has the lanes of its table"));
  CHECK(says(with([](auto& b) {
               b.operands[0].lanes = 1;
               b.operands[0].tile_stride = 0;
             }),
             "operand 0: the table of a Gather is a Vector, or goes element by element"));
  CHECK(says(with([](auto& b) { b.operands[0].tile_stride = 1; }),
             "row stride 1 is no multiple of 2"));
  CHECK(says(with([](auto& b) { b.extents[1] = 1025; }), "operand 0: core 0 reaches bytes 0"));
}

TEST(scatters_are_checked) {
  const auto with = [](auto change) { return changed(scatter(Opcode::scatter_add), change); };
  CHECK(says(with([](auto& b) { b.steps[0].cores = 0b11; }), "a Scatter runs on one core"));
  CHECK(says(with([](auto& b) { b.steps[0].masks = 0; }), "a Scatter has one mask"));
  CHECK(says(with([](auto& b) { b.masks[0].dim = 0; }), "a Gather or Scatter has no dimension"));
  CHECK(says(with([](auto& b) { b.steps[0].reduced = 1; }), "only Reduction and Matmul"));
  CHECK(says(with([](auto& b) { b.operands[1].lanes = 0, b.operands[1].stride[0] = 0; }),
             "an index, go element by element"));
  CHECK(says(with([](auto& b) { b.operands[1].format = 9; }), "index of a Scatter is IEEE_INT32"));
  CHECK(says(with([](auto& b) { b.operands[0].lanes = 0, b.operands[0].stride[0] = 0; }),
             "the source of a Scatter has the lanes of its table"));
  CHECK(says(with([](auto& b) { b.operands[2].tile_stride = 3; }), "row stride 3"));
  CHECK(says(with([](auto& b) { b.extents[1] = 1025; }), "operand 2: core 0 reaches bytes 0"));
  CHECK(says(with([](auto& b) { b.operands[2].tile_stride = -2; }), "operand 2: core 0 reaches"));
  CHECK(says(with([](auto& b) { b.symbols[2].is_written = 0; }), "not declared as written"));
  CHECK(says(with([](auto& b) { b.steps[0].flags = kChained; }), "only Pointwise steps"));
  CHECK(says(with([](auto& b) { b.steps[0].opcode = static_cast<uint16_t>(Opcode::gather); }),
             "of a Scatter step can't be gather"));
}

TEST(scattered_rows_have_no_more_elements_per_stick_than_the_table) {
  ProgramBuilder builder;
  const uint32_t x = builder.address(512), index = builder.address(128, false, kInt);
  const uint32_t table = builder.address(1280, true, DataFormat::IEEE_FP32);
  const auto from = builder.device(x, kHalf, {128});
  const auto which = element(builder, index, kInt, {4});
  auto to = builder.device(table, DataFormat::IEEE_FP32, {0});
  to.tile_stride = 128;
  builder.run(builder.step(Opcode::scatter_add, 1, {4}, {from, which}, to, StepKind::Scatter));
  builder.mask(kNoStickDim, 10);
  CHECK(says(reason(builder), "at least as many elements per stick as its source"));
}

TEST(argsorts_are_checked) {
  const auto with = [](auto change) { return changed(argsort(), change); };
  CHECK(says(with([](auto& b) { b.steps[0].reduced = 0; }), "goes along one dimension"));
  CHECK(says(with([](auto& b) { b.steps[0].reduced = 3; }), "goes along one dimension"));
  CHECK(says(with([](auto& b) { b.steps[0].reduced = 4; }),
             "goes along a dimension that is not among its 2"));
  CHECK(
      says(with([](auto& b) { b.operands[1].format = static_cast<uint8_t>(DataFormat::SENINT16); }),
           "positions are IEEE_INT32"));
  CHECK(says(with([](auto& b) { b.operands[1].stride[1] = 0; }), "stands still along dimension 1"));
  CHECK(says(with([](auto& b) { b.operands[0].lanes = 0, b.operands[0].stride[1] = 0; }),
             "go element by element"));
  CHECK(says(with([](auto& b) { b.mask(1, 50); }), "have masks"));
  CHECK(says(with([](auto& b) { b.extents[1] = 129; }), "operand 0: core 1 reaches"));
}

TEST(scans_are_checked) {
  const auto with = [](auto change) { return changed(scan(), change); };
  CHECK(says(with([](auto& b) { b.steps[0].reduced = 1; }), "does not go along the stick"));
  CHECK(says(with([](auto& b) { b.operands[0].lanes = 1; }), "are both Vectors, or both"));
  CHECK(says(with([](auto& b) { b.operands[1].lanes = 2; }), "are both Vectors, or both"));
  CHECK(says(with([](auto& b) { b.operands[1].lanes = 1; }), "results fill whole sticks"));
  CHECK(says(with([](auto& b) { b.operands[1].stride[1] = 0; }), "stands still along dimension 1"));
  CHECK(says(with([](auto& b) { b.steps[0].opcode = static_cast<uint16_t>(Opcode::sum); }),
             "of a Scan step can't be sum"));
  CHECK(says(
      changed(rows(Opcode::cummax_index, StepKind::Scan, kInt),
              [](auto& b) { b.operands[1].format = static_cast<uint8_t>(DataFormat::SENUINT32); }),
      "positions are IEEE_INT32"));
}

// ---- Figures -----------------------------------------------------------------------------------

TEST(an_element_of_a_table_costs_a_stick_as_long_as_there_are_so_many) {
  const auto few = load_program(gather().bytes());
  CHECK_EQ(few->bytes_read, 16 * 128 + 2 * 128);  // 40 elements, but the table has 16 sticks
  CHECK_EQ(few->bytes_written, 128);
  ProgramBuilder large = gather();
  large.symbols[0].bytes = 1 << 20;
  large.extents[1] = 1 << 19;
  CHECK_EQ(load_program(large.bytes())->bytes_read, 40 * 128 + 2 * 128);
}

TEST(a_table_that_is_accumulated_into_is_read_too) {
  const auto replaced = load_program(scatter(Opcode::scatter).bytes());
  CHECK_EQ(replaced->bytes_read, 128 + 2 * 128);
  CHECK_EQ(replaced->bytes_written, 16 * 128);
  CHECK_EQ(replaced->sfp_busy, 0);
  const auto added = load_program(scatter(Opcode::scatter_add).bytes());
  CHECK_EQ(added->bytes_read, 128 + 2 * 128 + 16 * 128);
  CHECK_EQ(added->bytes_written, 16 * 128);
  CHECK_EQ(added->sfp_busy, 1);
}

TEST(a_sort_passes_through_the_vector_unit_as_often_as_rows_double) {
  cost::Step expected;
  expected.cores = 2;
  expected.bytes_read = 6 * 256;
  expected.bytes_written = 6 * 512;
  expected.sfp_elements = 3 * 100 * 7;  // of one core; 2^7 is the first above 100
  const auto program = load_program(argsort().bytes());
  CHECK_EQ(program->nanoseconds, cost::nanoseconds(expected));
  CHECK_EQ(program->sfp_busy, 3 * 100 * 7 / 140);
}

TEST(a_scan_reads_and_writes_everything_once) {
  const auto program = load_program(scan().bytes());
  CHECK_EQ(program->bytes_read, 30 * 128);
  CHECK_EQ(program->bytes_written, 30 * 128);
  CHECK_EQ(program->sfp_busy, (30 * 64 + 139) / 140);
}
