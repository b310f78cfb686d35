// What the card accepts, what it rejects and why, and the figures it derives.
#include <functional>
#include <limits>
#include <string>

#include "../../torch_spyre/csrc/card/program.h"
#include "../../torch_spyre/csrc/cost/cost.h"
#include "accumulations.h"
#include "check.h"
#include "programs.h"

namespace {

using namespace spyre;
using spyre::testing::ProgramBuilder;
using spyre::testing::RandomAccumulations;
using spyre::testing::RandomPrograms;

constexpr auto kHalf = DataFormat::SEN169_FP16;

// y = x0 + x1 over 4 sticks on two cores, two sticks each.
ProgramBuilder valid() {
  ProgramBuilder builder;
  const uint32_t a = builder.address(512), b = builder.address(512);
  const uint32_t y = builder.address(512, true);
  // One by one, so that the bases lie in this order.
  const auto first = builder.device(a, kHalf, {128}, {0, 256});
  const auto second = builder.device(b, kHalf, {128}, {0, 256});
  const auto result = builder.device(y, kHalf, {128}, {0, 256});
  builder.run(builder.step(Opcode::add, 0b11, {2}, {first, second}, result));
  return builder;
}

std::string reason(const ProgramBuilder& builder) {
  try {
    load_program(builder.bytes());
  } catch (const ProgramError& error) {
    return error.what();
  }
  return "accepted";
}

// The valid program after a change.
std::string reason(const std::function<void(ProgramBuilder&)>& change) {
  ProgramBuilder builder = valid();
  change(builder);
  return reason(builder);
}

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "  got: %s\n", text.c_str());
  return false;
}

}  // namespace

TEST(a_valid_program_is_accepted) { CHECK_EQ(reason(valid()), std::string("accepted")); }

TEST(random_programs_are_accepted) {
  RandomPrograms programs(7);
  for (int i = 0; i < 500; ++i) CHECK_EQ(reason(programs.next()), std::string("accepted"));
}

TEST(headers_are_checked) {
  const auto bytes = valid().bytes();
  const auto with = [&](size_t place, std::byte value) -> std::string {
    auto changed = bytes;
    changed[place] = value;
    try {
      load_program(changed);
    } catch (const ProgramError& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(says(with(0, std::byte{0}), "magic"));
  CHECK(says(with(4, std::byte{1}), "version 1"));
  CHECK(says(with(6, std::byte{1}), "reserved"));
  CHECK(says(with(8, std::byte{1}), "size"));
  CHECK(says(with(15, std::byte{0xFF}), "symbols"));
  CHECK(says(with(16, std::byte{200}), "left"));
}

TEST(every_truncation_is_rejected) {
  const auto bytes = valid().bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    bool rejected = false;
    try {
      load_program(std::span(bytes).first(size));
    } catch (const ProgramError&) {
      rejected = true;
    }
    CHECK(rejected);
  }
}

TEST(symbols_are_checked) {
  CHECK(says(reason([](auto& b) { b.symbols[1].kind = 3; }), "symbol 1: unknown kind 3"));
  CHECK(says(reason([](auto& b) { b.symbols[1].format = 77; }), "unknown format 77"));
  CHECK(says(reason([](auto& b) { b.symbols[0].bytes = -1; }), "size -1"));
  CHECK(says(reason([](auto& b) { b.symbols[2].is_written = 0; }), "not declared as written"));
  CHECK(says(reason([](auto& b) { b.symbols[0].kind = 1; }), "is no address"));
  CHECK(says(reason([](auto& b) { b.symbols[0].reserved[2] = 1; }), "reserved"));
}

TEST(steps_are_checked) {
  CHECK(says(reason([](auto& b) { b.steps[0].opcode = 7; }), "unknown opcode 7"));
  CHECK(says(reason([](auto& b) { b.steps[0].kind = 3; }), "of a Matmul step can't be add"));
  CHECK(says(reason([](auto& b) { b.steps[0].opcode = 200; }), "of a Pointwise step can't be sum"));
  CHECK(says(reason([](auto& b) { b.steps[0].kind = 5; }), "of a Ring step can't be add"));
  CHECK(says(reason([](auto& b) { b.steps[0].kind = 9; }), "unknown kind 9"));
  CHECK(says(reason([](auto& b) { b.steps[0].rank = 9; }), "rank 9"));
  CHECK(says(reason([](auto& b) { b.steps[0].cores = 0; }), "no core"));
  CHECK(says(reason([](auto& b) { b.steps[0].cores = 0b111; }), "2 bases for 3 cores"));
  CHECK(says(reason([](auto& b) { b.steps[0].inputs = 1; }), "takes 2 inputs"));
  CHECK(says(reason([](auto& b) { b.steps[0].flags = 8; }), "flags"));
  CHECK(says(reason([](auto& b) { b.steps[0].stick_dim = 1; }), "stick dimension 1"));
  CHECK(says(reason([](auto& b) { b.steps[0].tail_cores = 4; }), "tail core"));
  CHECK(says(reason([](auto& b) { b.steps[0].tail_cores = 1; }), "no stick dimension"));
  CHECK(says(reason([](auto& b) { b.steps[0].extent = 9; }), "extents 9 to 10"));
  CHECK(says(reason([](auto& b) { b.steps[0].extent_count = 3; }), "3 rows of extents"));
  CHECK(says(reason([](auto& b) { b.steps[0].first_operand = 0xFFFFFFFF; }), "operands"));
  CHECK(says(reason([](auto& b) { b.extents[0] = -1; }), "extent -1"));
}

TEST(operands_are_checked) {
  CHECK(says(reason([](auto& b) { b.operands[0].space = 6; }), "unknown space 6"));
  CHECK(says(reason([](auto& b) { b.operands[0].space = 5; }), "only a Ring step reads"));
  CHECK(says(reason([](auto& b) { b.operands[0].lanes = 3; }), "unknown lanes 3"));
  CHECK(says(reason([](auto& b) { b.operands[0].lanes = 2; }), "element by element"));
  CHECK(says(reason([](auto& b) { b.operands[0].format = 12; }), "wants a float"));
  CHECK(says(reason([](auto& b) { b.operands[0].format = 7; }), "can't be computed"));
  CHECK(says(reason([](auto& b) { b.operands[0].symbol = 3; }), "symbols 3 to 4"));
  CHECK(says(reason([](auto& b) { b.operands[0].space = 3; }), "constants"));
  CHECK(says(reason([](auto& b) { b.operands[0].stride[0] = 64; }), "stride 64"));
  CHECK(says(reason([](auto& b) { b.operands[0].stride[3] = 128; }), "dimension 3"));
  CHECK(says(reason([](auto& b) { b.operands[0].loop_stride[0] = 128; }), "only 0 loops"));
  CHECK(says(reason([](auto& b) { b.operands[0].tail_tiles = 2; }), "2 tail tiles"));
  CHECK(says(reason([](auto& b) { b.operands[2].lanes = 1; }), "whole sticks"));
  CHECK(says(reason([](auto& b) { b.operands[2].space = 3; }), "device memory or LX"));
  CHECK(says(reason([](auto& b) { b.operands[0].base = 100; }), "bases"));
  CHECK(says(reason([](auto& b) { b.bases[0] = 2; }), "base 2"));
}

TEST(addresses_stay_inside_what_they_belong_to) {
  CHECK(says(reason([](auto& b) { b.bases[1] = 384; }), "core 1 reaches bytes 384 to 640"));
  CHECK(says(reason([](auto& b) { b.bases[0] = -128; }), "reaches bytes -128"));
  CHECK(says(reason([](auto& b) { b.operands[0].stride[0] = -128; }), "core 0 reaches"));
  CHECK(says(reason([](auto& b) { b.extents[0] = 5; }), "core 0 reaches"));
  CHECK(says(reason([](auto& b) {
               b.operands[0].stride[0] = std::numeric_limits<int64_t>::max() / 128 * 128;
               b.extents[0] = int64_t{1} << 39;
             }),
             "card program rejected"));
  // Backwards is fine as long as it stays inside.
  CHECK_EQ(reason([](auto& b) {
             b.operands[0].stride[0] = -128;
             b.bases[0] = 128;
             b.bases[1] = 384;
           }),
           std::string("accepted"));
}

TEST(scratchpads_end_before_the_reserved_part) {
  const auto at = [](int64_t base) {
    ProgramBuilder builder;
    const uint32_t x = builder.address(128);
    builder.run(builder.step(Opcode::neg, 1, {}, {builder.device(x, kHalf, {})},
                             builder.operand(Space::Lx, 0, kHalf, Lanes::Vector, {base}, {})));
    return reason(builder);
  };
  CHECK_EQ(at(kLxBytes - kLxReserved - 128), std::string("accepted"));
  CHECK(says(at(kLxBytes - kLxReserved), "of LX"));
}

TEST(a_core_spans_at_most_256_mib_of_a_tensor) {
  const auto over = [](int64_t sticks) {
    ProgramBuilder builder;
    const uint32_t x = builder.address(sticks * 128, true);
    const auto all = builder.device(x, kHalf, {128});
    builder.run(builder.step(Opcode::neg, 1, {sticks}, {all}, all));
    return reason(builder);
  };
  CHECK_EQ(over(kSpanBytes / 128), std::string("accepted"));
  CHECK(says(over(kSpanBytes / 128 + 1), "spans"));
}

TEST(the_loop_tree_is_checked) {
  const auto with = [](const std::vector<NodeRecord>& nodes) {
    return reason([&](ProgramBuilder& b) { b.nodes = nodes; });
  };
  CHECK(says(with({}), "no nodes"));
  CHECK(says(with({{0, 1, 0, 0}}), "no step 1"));
  CHECK(says(with({{2, 0, 0, 0}}), "unknown kind 2"));
  CHECK(says(with({{1, 0, 2, 0}, {0, 0, 0, 0}}), "without a body"));
  CHECK(says(with({{1, 0, 2, 2}, {0, 0, 0, 0}}), "1 are left"));
  CHECK(says(with({{1, 0, 0, 1}, {0, 0, 0, 0}}), "0 times"));
  CHECK(says(with({{1, 0, 2, 5}, {1, 0, 2, 4}, {1, 0, 2, 3}, {1, 0, 2, 2}, {1, 0, 2, 1}, {}}),
             "deeper than 4"));
  CHECK(says(with({{1, 0, 0xFFFFFFFF, 2}, {1, 0, 0xFFFFFFFF, 1}, {0, 0, 0, 0}}), "iterations"));
  CHECK_EQ(with({{1, 0, 2, 1}, {0, 0, 0, 0}}), std::string("accepted"));
}

// fp32 result of an fp16 operand: two tiles per iteration, the last one half there.
TEST(tails_end_where_the_tensor_does) {
  const auto with = [](int64_t bytes, uint8_t tail_tiles) {
    ProgramBuilder builder;
    const uint32_t x = builder.address(256);
    const uint32_t y = builder.address(bytes, true);
    OperandRecord out = builder.device(y, DataFormat::IEEE_FP32, {256});
    out.tile_stride = 128;
    out.tail_tiles = tail_tiles;
    const uint32_t step =
        builder.step(Opcode::identity, 1, {2}, {builder.device(x, kHalf, {128})}, out);
    builder.steps[step].stick_dim = 0;
    builder.steps[step].tail_cores = 1;
    builder.run(step);
    return reason(builder);
  };
  CHECK_EQ(with(512, 0), std::string("accepted"));
  CHECK(says(with(384, 0), "reaches"));
  CHECK_EQ(with(384, 1), std::string("accepted"));
  CHECK(says(with(512, 3), "3 tail tiles"));
}

// ---- Figures -----------------------------------------------------------------------------------

TEST(bytes_count_what_cores_share_once) {
  const auto program = load_program(valid().bytes());
  CHECK_EQ(program->bytes_read, 1024);
  CHECK_EQ(program->bytes_written, 512);
  CHECK_EQ(program->work, 4 * 64);
  ProgramBuilder shared = valid();
  shared.bases[2] = shared.bases[3] = 0;  // the second input's
  CHECK_EQ(load_program(shared.bytes())->bytes_read, 512 + 256);
}

TEST(a_standalone_broadcast_has_its_own_law) {
  ProgramBuilder builder;
  constexpr int64_t kRows = 4096;
  const uint32_t x = builder.address(kRows * 128);
  const uint32_t bias = builder.address(128);
  const uint32_t y = builder.address(kRows * 128, true);
  const uint32_t step = builder.step(
      Opcode::add, 1, {kRows}, {builder.device(x, kHalf, {128}), builder.device(bias, kHalf, {0})},
      builder.device(y, kHalf, {128}));
  builder.run(step);
  cost::Step expected;
  expected.traffic = cost::Traffic::BroadcastPointwise;
  expected.bytes_read = kRows * 128 + 128;
  expected.bytes_written = kRows * 128;
  expected.sfp_elements = kRows * 64;
  CHECK_EQ(load_program(builder.bytes())->nanoseconds, cost::nanoseconds(expected));
  // With a second step the kernel is fused, and priced as such.
  builder.run(builder.step(Opcode::neg, 1, {}, {builder.device(bias, kHalf, {})},
                           builder.device(y, kHalf, {})));
  cost::Step small;
  small.bytes_read = small.bytes_written = 128;
  small.sfp_elements = 64;
  expected.traffic = cost::Traffic::Fused;
  CHECK_EQ(load_program(builder.bytes())->nanoseconds,
           cost::nanoseconds(expected) + cost::nanoseconds(small));
}

TEST(loops_multiply_time_and_bytes) {
  ProgramBuilder once = valid();
  ProgramBuilder looped = valid();
  looped.nodes = {{1, 0, 3, 2}, {1, 0, 2, 1}, {0, 0, 0, 0}};
  cost::Step tile;
  tile.cores = 2;
  tile.bytes_read = 1024;
  tile.bytes_written = 512;
  tile.sfp_elements = 2 * 64;
  CHECK_EQ(load_program(once.bytes())->nanoseconds, cost::nanoseconds(tile));
  // Two sticks per core: without a stick dimension each is a row.
  tile.tile_rows_per_core = 2;
  tile.tile_columns = 64;
  CHECK_EQ(load_program(looped.bytes())->nanoseconds, 6 * cost::nanoseconds(tile));
  CHECK_EQ(load_program(looped.bytes())->bytes_read, 6 * 1024);
}

namespace {

// Negates `rows` x `sticks` sticks per core in a loop.
ProgramBuilder negated_tiles(uint32_t count, int64_t rows, int64_t sticks, bool in_lx) {
  ProgramBuilder builder;
  const int64_t slice = rows * sticks * 128;
  const uint32_t x = builder.address(2 * slice);
  const uint32_t y = builder.address(2 * slice, true);
  const std::vector<int64_t> stride = {sticks * 128, 128};
  const OperandRecord lx = builder.operand(Space::Lx, 0, kHalf, Lanes::Vector, {0}, stride);
  const uint32_t step = builder.step(Opcode::neg, 0b11, {rows, sticks},
                                     {in_lx ? lx : builder.device(x, kHalf, stride, {0, slice})},
                                     in_lx ? lx : builder.device(y, kHalf, stride, {0, slice}));
  builder.steps[step].stick_dim = 1;
  builder.loop(count, 1);
  builder.run(step);
  return builder;
}

}  // namespace

TEST(a_tile_of_few_rows_wastes_bandwidth) {
  for (const int64_t rows : {1, 4, 100}) {
    cost::Step tile;
    tile.cores = 2;
    tile.bytes_read = tile.bytes_written = 2 * rows * 16 * 128;
    tile.sfp_elements = rows * 16 * 64;
    CHECK_EQ(load_program(negated_tiles(1, rows, 16, false).bytes())->nanoseconds,
             cost::nanoseconds(tile));
    tile.tile_rows_per_core = rows;
    tile.tile_columns = 16 * 64;
    CHECK_EQ(load_program(negated_tiles(5, rows, 16, false).bytes())->nanoseconds,
             5 * cost::nanoseconds(tile));
  }
}

TEST(a_tile_in_lx_takes_as_long_as_any_other_visit) {
  const int64_t once = load_program(negated_tiles(1, 1, 16, true).bytes())->nanoseconds;
  CHECK_EQ(load_program(negated_tiles(7, 1, 16, true).bytes())->nanoseconds, 7 * once);
}

// ---- Reductions, matmuls, gathers --------------------------------------------------------------

namespace {

// Row sums of a [4, 130] fp16 tensor: 3 tiles of 4 rows, of which 130 elements count.
ProgramBuilder row_sums() {
  ProgramBuilder builder;
  const uint32_t x = builder.address(12 * 128), y = builder.address(4 * 128, true);
  const auto from = builder.device(x, kHalf, {4 * 128, 128});
  auto to = builder.device(y, kHalf, {0, 128});
  to.lanes = static_cast<uint8_t>(Lanes::First);
  builder.run(builder.step(Opcode::sum, 1, {3, 4}, {from}, to, StepKind::Reduction));
  builder.steps[0].stick_dim = 0;
  builder.steps[0].reduced = 0b01;
  builder.mask(0, 130);
  return builder;
}

// [8, 100] @ [100, 128]: rows, sticks of n, sticks of k. B has 100 rows of two sticks, no more.
ProgramBuilder matmul() {
  ProgramBuilder builder;
  const uint32_t a = builder.address(2 * 8 * 128), b = builder.address(2 * 100 * 128);
  const uint32_t c = builder.address(2 * 8 * 128, true);
  const auto left = builder.device(a, kHalf, {128, 0, 8 * 128});
  auto right = builder.device(b, kHalf, {0, 100 * 128, 64 * 128});
  right.tile_stride = 128;
  const auto to = builder.device(c, kHalf, {128, 8 * 128, 0});
  builder.run(builder.step(Opcode::batchmatmul, 1, {8, 2, 2}, {left, right}, to, StepKind::Matmul));
  builder.steps[0].stick_dim = 1;
  builder.steps[0].lane_dim = 2;
  builder.steps[0].reduced = 0b100;
  builder.mask(2, 100);
  return builder;
}

// [8, 100] @ [100, 128], the columns in bytes: an iteration takes two sticks of A, one of n.
ProgramBuilder byte_matmul() {
  ProgramBuilder builder;
  const uint32_t a = builder.address(2 * 8 * 128);
  const uint32_t b = builder.address(100 * 128, false, DataFormat::SENINT8);
  const uint32_t c = builder.address(2 * 8 * 128, true);
  auto left = builder.device(a, kHalf, {128, 0, 2 * 8 * 128});
  left.tile_stride = 8 * 128;
  auto right = builder.device(b, DataFormat::SENINT8, {0, 0, 128 * 128});
  right.tile_stride = 128;
  auto to = builder.device(c, kHalf, {128, 2 * 8 * 128, 0});
  to.tile_stride = 8 * 128;
  builder.run(
      builder.step(Opcode::batchmatmul_int8, 1, {8, 1, 1}, {left, right}, to, StepKind::Matmul));
  builder.steps[0].stick_dim = 1;
  builder.steps[0].lane_dim = 2;
  builder.steps[0].reduced = 0b100;
  builder.mask(2, 100);
  return builder;
}

// 4 of 50 rows of a table, one stick each.
ProgramBuilder gather() {
  ProgramBuilder builder;
  const uint32_t table = builder.address(50 * 128);
  const uint32_t index = builder.address(128, false, DataFormat::IEEE_INT32);
  const uint32_t y = builder.address(4 * 128, true);
  auto from = builder.device(table, kHalf, {0});
  from.tile_stride = 128;
  const auto which =
      builder.operand(Space::Device, index, DataFormat::IEEE_INT32, Lanes::Element, {0}, {4});
  const auto to = builder.device(y, kHalf, {128});
  builder.run(builder.step(Opcode::gather, 1, {4}, {from, which}, to, StepKind::Gather));
  builder.mask(kNoStickDim, 50);
  return builder;
}

std::string changed(ProgramBuilder builder, const std::function<void(ProgramBuilder&)>& change) {
  change(builder);
  return reason(builder);
}

// y = -x, z = -y over 4 sticks; y in LX, the second step chained to the first.
ProgramBuilder chain() {
  ProgramBuilder builder;
  const uint32_t x = builder.address(512), z = builder.address(512, true);
  const auto from = builder.device(x, kHalf, {128});
  const auto middle = builder.operand(Space::Lx, 0, kHalf, Lanes::Vector, {0}, {128});
  const auto to = builder.device(z, kHalf, {128});
  builder.run(builder.step(Opcode::neg, 1, {4}, {from}, middle));
  builder.run(builder.step(Opcode::neg, 1, {4}, {middle}, to));
  builder.steps[0].flags = kDiscarded;
  builder.steps[1].flags = kChained;
  return builder;
}

}  // namespace

TEST(each_kind_of_step_is_accepted) {
  for (const ProgramBuilder& builder : {row_sums(), matmul(), byte_matmul(), gather(), chain()}) {
    CHECK_EQ(reason(builder), std::string("accepted"));
  }
  RandomAccumulations programs(5);
  for (int i = 0; i < 300; ++i) {
    CHECK_EQ(reason(programs.reduction()), std::string("accepted"));
    CHECK_EQ(reason(programs.matmul()), std::string("accepted"));
    CHECK_EQ(reason(programs.gather()), std::string("accepted"));
    CHECK_EQ(reason(programs.chain()), std::string("accepted"));
  }
}

TEST(reductions_are_checked) {
  const auto with = [](auto change) { return changed(row_sums(), change); };
  CHECK(says(with([](auto& b) { b.steps[0].reduced = 0; }), "accumulates no dimension"));
  CHECK(says(with([](auto& b) { b.steps[0].reduced = 4; }), "not among its 2"));
  CHECK(says(with([](auto& b) { b.steps[0].reduced = 2; }), "gives Vectors"));
  CHECK(says(with([](auto& b) { b.operands[1].lanes = 0; }), "gives First lanes"));
  CHECK(says(with([](auto& b) { b.operands[1].stride[0] = 128; }), "stands still"));
  CHECK(says(with([](auto& b) { b.steps[0].lane_dim = 0; }), "only a Matmul"));
  CHECK(says(with([](auto& b) { b.steps[0].flags = kChained; }), "only Pointwise steps"));
  CHECK(says(with([](auto& b) {
               b.operands[0].space = static_cast<uint8_t>(Space::Constant);
               b.constants = {0};
             }),
             "device memory or LX"));
}

TEST(masks_are_checked) {
  const auto with = [](auto change) { return changed(row_sums(), change); };
  CHECK(says(with([](auto& b) { b.masks[0].dim = 1; }), "dimension 1 is not accumulated"));
  CHECK(says(with([](auto& b) { b.masks[0].dim = kNoStickDim; }), "mask of a Gather"));
  CHECK(says(with([](auto& b) { b.masks[0].valid = 99; }), "extents 99 to 100"));
  CHECK(says(with([](auto& b) { b.extents[2] = -1; }), "valid length -1"));
  CHECK(says(with([](auto& b) { b.masks[0].is_symbol = 1; }), "symbols 2 to 3"));
  CHECK(says(with([](auto& b) {
               b.masks[0].is_symbol = 1;
               b.masks[0].valid = 0;
             }),
             "symbol 0 is no extent"));
  CHECK(says(with([](auto& b) { b.masks[0].base_count = 2; }), "2 bases for 1 cores"));
  CHECK(says(with([](auto& b) { b.masks[0].loop_stride[0] = 1; }), "only 0 loops"));
  CHECK(says(with([](auto& b) { b.steps[0].masks = 2; }), "masks 0 to 2"));
  CHECK(says(with([](auto& b) { b.mask(0, 5); }), "has another mask"));
  CHECK(says(with([](auto& b) { b.masks[0].padding = 1; }), "padding"));
}

TEST(a_stick_that_no_position_counts_in_is_not_read) {
  const auto with = [](int64_t valid) {
    return changed(row_sums(), [&](auto& b) {
      b.symbols[0].bytes = 8 * 128;  // two of the three tiles
      b.extents[2] = valid;
    });
  };
  CHECK_EQ(with(128), std::string("accepted"));
  CHECK(says(with(129), "core 0 reaches"));
}

TEST(matmuls_are_checked) {
  const auto with = [](auto change) { return changed(matmul(), change); };
  CHECK(says(with([](auto& b) { b.steps[0].stick_dim = kNoStickDim; }), "has a stick dimension"));
  CHECK(says(with([](auto& b) { b.steps[0].stick_dim = 2; }), "has a stick dimension"));
  CHECK(says(with([](auto& b) { b.steps[0].lane_dim = 0; }), "last one that is accumulated"));
  CHECK(says(with([](auto& b) { b.operands[0].stride[1] = 128; }), "stands still along n"));
  CHECK(says(with([](auto& b) { b.operands[2].stride[2] = 128; }), "stands still"));
  CHECK(says(with([](auto& b) { b.operands[1].tile_stride = 64; }), "row stride 64"));
  CHECK(says(with([](auto& b) { b.operands[1].format = 1; }), "elements per stick"));
  CHECK(says(with([](auto& b) { b.operands[0].format = 3; }), "more elements per stick"));
  CHECK(says(with([](auto& b) { b.operands[2].format = 3; }), "more elements per stick"));
  CHECK(says(with([](auto& b) { b.steps[0].opcode = 221; }), "wants an integer format"));
  const auto bytes = [](auto change) { return changed(byte_matmul(), change); };
  CHECK(says(bytes([](auto& b) { b.operands[0].tail_tiles = 1; }), "a mask says"));
  CHECK(says(bytes([](auto& b) { b.operands[1].format = 12; }), "more elements per stick"));
  CHECK(says(bytes([](auto& b) { b.operands[1].format = 9; }), "is SENINT8"));
  CHECK(says(bytes([](auto& b) { b.steps[0].opcode = 220; }), "wants a float format"));
}

// 100 elements of k are two sticks of A; with 64 the second may be missing.
TEST(a_matmul_reads_the_sticks_of_k_that_count) {
  const auto with = [](int64_t valid, int64_t sticks) {
    return changed(byte_matmul(), [&](auto& b) {
      b.extents[3] = valid;
      b.symbols[0].bytes = sticks * 8 * 128;
      b.symbols[1].bytes = 128 * 128;
    });
  };
  CHECK_EQ(with(64, 1), std::string("accepted"));
  CHECK(says(with(65, 1), "operand 0: core 0 reaches bytes 0 to 2048"));
  CHECK_EQ(with(65, 2), std::string("accepted"));
  CHECK_EQ(with(128, 2), std::string("accepted"));
}

// The last stick of k has 36 rows of B; that there are no more is no fault.
TEST(a_matmul_reads_the_rows_of_k_that_count) {
  const auto with = [](int64_t valid) {
    return changed(matmul(), [&](auto& b) { b.extents[3] = valid; });
  };
  CHECK_EQ(with(99), std::string("accepted"));
  CHECK(says(with(101), "operand 1: core 0 reaches bytes 0 to 25728"));
  // A length that the launch binds is taken as its longest.
  const auto bound = [](int64_t longest) {
    return changed(matmul(), [&](auto& b) {
      b.masks[0].is_symbol = 1;
      b.masks[0].valid = b.extent(longest);
    });
  };
  CHECK_EQ(bound(100), std::string("accepted"));
  CHECK(says(bound(101), "operand 1: core 0 reaches"));
}

// k in a loop of two: the mask moves on with the loop, and with it the end of B.
TEST(masks_move_with_loops) {
  ProgramBuilder builder = matmul();
  builder.extents[2] = 1;
  builder.nodes = {{1, 0, 2, 1}, {0, 0, 0, 0}};
  builder.operands[0].loop_stride[0] = 8 * 128;
  builder.operands[1].loop_stride[0] = 64 * 128;
  CHECK(says(reason(builder), "operand 1: core 0 reaches"));
  builder.masks[0].loop_stride[0] = 64;
  CHECK_EQ(reason(builder), std::string("accepted"));
}

TEST(gathers_are_checked) {
  const auto with = [](auto change) { return changed(gather(), change); };
  CHECK(says(with([](auto& b) { b.steps[0].masks = 0; }), "has one mask"));
  CHECK(says(with([](auto& b) { b.masks[0].dim = 0; }),
             "mask of a Gather or Scatter has no dimension"));
  CHECK(says(with([](auto& b) {
               b.operands[1].lanes = 1;
               b.operands[1].stride[0] = 0;
             }),
             "element by element"));
  CHECK(says(with([](auto& b) { b.operands[1].format = 9; }), "index of a Gather is IEEE_INT32"));
  CHECK(says(with([](auto& b) { b.operands[0].format = 1; }), "at least as many elements"));
  CHECK(says(with([](auto& b) { b.operands[0].tile_stride = 1; }), "row stride 1"));
  CHECK(says(with([](auto& b) { b.extents[1] = 51; }), "operand 0: core 0 reaches"));
}

TEST(chains_are_checked) {
  const auto with = [](auto change) { return changed(chain(), change); };
  CHECK(says(with([](auto& b) { b.steps[0].flags = kChained; }), "follows no Pointwise step"));
  CHECK(says(with([](auto& b) { b.steps[1].flags |= kBarrierBefore; }), "barrier"));
  CHECK(says(with([](auto& b) { b.steps[1].flags = 0; }), "no step is chained to it"));
  CHECK(says(with([](auto& b) { b.steps[1].cores = 2; }), "other cores"));
  CHECK(says(with([](auto& b) { b.extents[1] = 3; }), "other cores, extents"));
  CHECK(says(with([](auto& b) { b.operands[2].stride[0] = 0; }), "at another iteration"));
  CHECK(says(with([](auto& b) {
               b.operands[2].base = static_cast<uint32_t>(b.bases.size());
               b.bases.push_back(128);
             }),
             "at another iteration"));
  CHECK(says(with([](auto& b) {
               b.operands[1] = b.operands[3];
               b.operands[2] = b.operands[0];
             }),
             "goes to device memory"));
  // In place is the same iteration.
  CHECK_EQ(with([](auto& b) {
             b.operands[3] = b.operands[2];
             b.symbols[1].is_written = 0;
           }),
           std::string("accepted"));
}

TEST(a_standalone_reduction_has_its_own_law) {
  cost::Step expected;
  expected.traffic = cost::Traffic::RowReduction;
  expected.bytes_read = 12 * 128;
  expected.bytes_written = 4 * 128;
  expected.sfp_elements = 12 * 64;
  expected.rows = 4;
  CHECK_EQ(load_program(row_sums().bytes())->nanoseconds, cost::nanoseconds(expected));
  // Of the rows instead of the sticks.
  ProgramBuilder columns = row_sums();
  columns.masks.clear();
  columns.steps[0].masks = 0;
  columns.steps[0].reduced = 0b10;
  columns.operands[1].lanes = 0;
  columns.operands[1].stride[0] = 128;
  columns.operands[1].stride[1] = 0;
  expected.traffic = cost::Traffic::CrossRowReduction;
  expected.bytes_written = 3 * 128;
  CHECK_EQ(load_program(columns.bytes())->nanoseconds, cost::nanoseconds(expected));
}

TEST(a_matmul_is_priced_by_its_busiest_core) {
  cost::Step expected;
  expected.traffic = cost::Traffic::Matmul;
  expected.m = 8;
  expected.n = 128;
  expected.k = 100;
  expected.a_bytes = 2 * 8 * 128;
  expected.b_bytes = 2 * 100 * 128;
  expected.bytes_read = expected.a_bytes + expected.b_bytes;
  expected.bytes_written = 2 * 8 * 128;
  const auto program = load_program(matmul().bytes());
  CHECK_EQ(program->nanoseconds, cost::nanoseconds(expected));
  CHECK_EQ(program->bytes_read, expected.bytes_read);
}

// Bytes are read as bytes; the array is as fast as its wider operand lets it be.
TEST(a_matmul_of_byte_columns_is_priced_by_its_16_bit_rows) {
  cost::Step expected;
  expected.traffic = cost::Traffic::Matmul;
  expected.m = 8;
  expected.n = 128;
  expected.k = 100;
  expected.a_bytes = 2 * 8 * 128;
  expected.b_bytes = 100 * 128;
  expected.bytes_read = expected.a_bytes + expected.b_bytes;
  expected.bytes_written = 2 * 8 * 128;
  expected.bits = 16;
  const auto program = load_program(byte_matmul().bytes());
  CHECK_EQ(program->nanoseconds, cost::nanoseconds(expected));
  CHECK_EQ(program->bytes_read, expected.bytes_read);
}

TEST(a_gather_reads_a_stick_per_iteration) {
  const auto program = load_program(gather().bytes());
  CHECK_EQ(program->bytes_read, 4 * 128 + 128);
  CHECK_EQ(program->bytes_written, 4 * 128);
}

// Two cores whose slices share a row: the union counts.
TEST(slices_that_overlap_count_what_they_share_once) {
  ProgramBuilder builder;
  const uint32_t x = builder.address(7 * 3 * 128), y = builder.address(2 * 3 * 4 * 128, true);
  const auto from = builder.device(x, kHalf, {7 * 128, 128}, {0, 3 * 128});
  const auto to = builder.device(y, kHalf, {4 * 128, 128}, {0, 12 * 128});
  builder.run(builder.step(Opcode::neg, 0b11, {3, 4}, {from}, to));
  const auto program = load_program(builder.bytes());
  CHECK_EQ(program->bytes_read, 3 * 7 * 128);
  CHECK_EQ(program->bytes_written, 2 * 3 * 4 * 128);
}

// Windows of 3 sticks, one further each time: 10 sticks, not 24.
TEST(windows_that_overlap_count_each_stick_once) {
  ProgramBuilder builder;
  const uint32_t x = builder.address(10 * 128), y = builder.address(24 * 128, true);
  const auto from = builder.device(x, kHalf, {128, 128});
  const auto to = builder.device(y, kHalf, {3 * 128, 128});
  builder.run(builder.step(Opcode::neg, 1, {8, 3}, {from}, to));
  CHECK_EQ(load_program(builder.bytes())->bytes_read, 10 * 128);
}
