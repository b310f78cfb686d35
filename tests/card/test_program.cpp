// What the card accepts, what it rejects and why, and the figures it derives.
#include <functional>
#include <limits>
#include <string>

#include "../../torch_spyre/csrc/card/program.h"
#include "../../torch_spyre/csrc/cost/cost.h"
#include "check.h"
#include "programs.h"

namespace {

using namespace spyre;
using spyre::testing::ProgramBuilder;
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
  CHECK(says(with(4, std::byte{2}), "version 2"));
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
  CHECK(says(reason([](auto& b) { b.steps[0].kind = 3; }), "Matmul steps are not executed"));
  CHECK(says(reason([](auto& b) { b.steps[0].kind = 5; }), "Ring steps"));
  CHECK(says(reason([](auto& b) { b.steps[0].kind = 9; }), "unknown kind 9"));
  CHECK(says(reason([](auto& b) { b.steps[0].rank = 9; }), "rank 9"));
  CHECK(says(reason([](auto& b) { b.steps[0].cores = 0; }), "no core"));
  CHECK(says(reason([](auto& b) { b.steps[0].cores = 0b111; }), "2 bases for 3 cores"));
  CHECK(says(reason([](auto& b) { b.steps[0].inputs = 1; }), "takes 2 inputs"));
  CHECK(says(reason([](auto& b) { b.steps[0].flags = 2; }), "flags"));
  CHECK(says(reason([](auto& b) { b.steps[0].stick_dim = 1; }), "stick dimension 1"));
  CHECK(says(reason([](auto& b) { b.steps[0].tail_cores = 4; }), "tail core"));
  CHECK(says(reason([](auto& b) { b.steps[0].tail_cores = 1; }), "no stick dimension"));
  CHECK(says(reason([](auto& b) { b.steps[0].extent = 9; }), "extents 9 to 10"));
  CHECK(says(reason([](auto& b) { b.steps[0].extent_count = 3; }), "3 rows of extents"));
  CHECK(says(reason([](auto& b) { b.steps[0].first_operand = 0xFFFFFFFF; }), "operands"));
  CHECK(says(reason([](auto& b) { b.extents[0] = -1; }), "extent -1"));
}

TEST(operands_are_checked) {
  CHECK(says(reason([](auto& b) { b.operands[0].space = 5; }), "unknown space 5"));
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
  CHECK_EQ(load_program(looped.bytes())->nanoseconds, 6 * load_program(once.bytes())->nanoseconds);
  CHECK_EQ(load_program(looped.bytes())->bytes_read, 6 * 1024);
}
