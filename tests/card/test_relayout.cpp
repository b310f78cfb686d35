// Relayout: cores collect their slices from the scratchpads of others.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/driver.h"
#include "../../torch_spyre/csrc/card/figures.h"
#include "../../torch_spyre/csrc/cost/cost.h"
#include "check.h"
#include "launches.h"
#include "relayouts.h"

namespace {

using namespace spyre;
using namespace spyre::testing;
using namespace spyre::testing::relayouts;

std::string reason(const ProgramBuilder& builder) {
  try {
    load_program(builder.bytes());
  } catch (const ProgramError& error) {
    return error.what();
  }
  return "accepted";
}

template <typename Change>
bool says(const std::string& part, Change change) {
  ProgramBuilder builder = rows_to_columns(4, 2);
  change(builder, builder.steps[kRing], builder.operands[builder.steps[kRing].first_operand]);
  const std::string text = reason(builder);
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "  got: %s\n", text.c_str());
  return false;
}

}  // namespace

TEST(every_core_collects_its_slice_from_all_others) {
  for (const auto& [cores, rows] : {std::pair(4, 3), {32, 5}, {8, 60}}) {
    for (const int threads : {1, 3}) {
      Launch launch(rows_to_columns(cores, rows), 5);
      launch.run(threads);
      for (int column = 0; column < cores; ++column) {
        for (int row = 0; row < cores * rows; ++row) {
          const std::byte* from = launch.data(0) + (row * cores + column) * kStick;
          const std::byte* to = launch.data(1) + (column * cores * rows + row) * kStick;
          CHECK(std::equal(from, from + kStick, to));
        }
      }
    }
  }
}

// Each core holds noise of its own. Of any owners, at any place, each collects what is there.
TEST(any_core_may_own_any_part) {
  RandomPrograms random(11);
  for (int i = 0; i < 200; ++i) {
    const int cores = random.pick(1, 6), parts = random.pick(1, 5);
    const int64_t sticks = random.pick(1, 7), held = 64;
    ProgramBuilder builder;
    const uint32_t x = builder.address(kCores * held * kStick, false, kFormat);
    const uint32_t y = builder.address(cores * parts * sticks * kStick, true, kFormat);
    uint32_t takers = 0;
    while (std::popcount(takers) < cores) takers |= uint32_t{1} << random.pick(0, kCores - 1);
    std::vector<int64_t> owners(cores * parts), places(cores);
    for (int64_t& owner : owners) owner = random.pick(0, kCores - 1);
    for (int64_t& place : places) place = random.pick(0, static_cast<int>(held - sticks)) * kStick;
    builder.run(builder.step(Opcode::identity, first_cores(kCores), {held},
                             {builder.device(x, kFormat, {kStick}, steps(kCores, held * kStick))},
                             lx(builder, {0}, {kStick})));
    const auto from = owned(builder, owners, places, {kStick, 0});
    const uint32_t ring =
        builder.step(Opcode::identity, takers, {sticks, parts}, {from},
                     lx(builder, {kTarget}, {parts * kStick, kStick}), StepKind::Ring);
    builder.steps[ring].reduced = 0b10;
    builder.steps[ring].ring = static_cast<uint8_t>(parts);
    builder.run(ring);
    // What was collected is already elsewhere when the owners write over it.
    builder.run(builder.step(Opcode::neg, first_cores(kCores), {held}, {lx(builder, {0}, {kStick})},
                             lx(builder, {0}, {kStick})));
    builder.run(
        builder.step(Opcode::identity, takers, {parts * sticks}, {lx(builder, {kTarget}, {kStick})},
                     builder.device(y, kFormat, {kStick}, steps(cores, parts * sticks * kStick))));
    Launch launch(builder, i);
    launch.run(1 + i % 3);
    for (int core = 0; core < cores; ++core) {
      for (int64_t k = 0; k < parts * sticks; ++k) {
        const int64_t owner = owners[core * parts + k % parts];
        const std::byte* there =
            launch.data(0) + owner * held * kStick + places[core] + k / parts * kStick;
        const std::byte* here = launch.data(1) + (core * parts * sticks + k) * kStick;
        CHECK(std::equal(there, there + kStick, here));
      }
    }
  }
}

TEST(relayouts_are_checked) {
  CHECK(says("accepted", [](auto&, auto&, auto&) {}));
  CHECK(says("names no owners", [](auto&, auto& step, auto&) { step.ring = 0; }));
  CHECK(says("not as many as its 3 owners", [](auto&, auto& step, auto&) { step.ring = 3; }));
  CHECK(says("not as many as its 4", [](auto&, auto& step, auto&) { step.reduced = 0; }));
  CHECK(says("counts a dimension", [](auto&, auto& step, auto&) { step.reduced = 0b101; }));
  CHECK(says("all owners have it at one address",
             [](auto&, auto&, auto& from) { from.stride[0] = kStick; }));
  CHECK(says("owner 32 is no core", [](auto& b, auto&, auto& from) { b.bases[from.symbol] = 32; }));
  CHECK(says("owner -1", [](auto& b, auto&, auto& from) { b.bases[from.symbol + 15] = -1; }));
  CHECK(says("owners", [](auto& b, auto&, auto& from) {
    from.symbol = static_cast<uint32_t>(b.bases.size() - 15);
  }));
  CHECK(says("of LX", [](auto& b, auto&, auto& from) {
    b.bases[from.base + 3] = kLxBytes - kLxReserved - kStick;
  }));
  CHECK(
      says("reaches bytes -128", [](auto& b, auto&, auto& from) { b.bases[from.base] = -kStick; }));
  CHECK(says("reads the scratchpads",
             [](auto&, auto&, auto& from) { from.space = static_cast<uint8_t>(Space::Lx); }));
  CHECK(says("results go to device memory or LX", [](auto& b, auto& step, auto&) {
    b.operands[step.first_operand + 1].space = static_cast<uint8_t>(Space::Ring);
  }));
  CHECK(says("whole sticks of one format", [](auto&, auto&, auto& from) {
    from.format = static_cast<uint8_t>(DataFormat::SEN169_FP16);
  }));
  CHECK(says("can't be neg",
             [](auto&, auto& step, auto&) { step.opcode = static_cast<uint16_t>(Opcode::neg); }));
  CHECK(says("writes in the same step", [](auto& b, auto& step, auto&) {
    b.bases[b.operands[step.first_operand + 1].base] = 7 * kStick;
  }));
  CHECK(says("only Reduction and Matmul", [](auto& b, auto&, auto&) { b.steps[0].ring = 2; }));
}

TEST(a_relayout_takes_its_time_on_the_ring) {
  constexpr int kTakers = 8;
  constexpr int64_t kRows = 16;
  cost::Step expected;
  expected.cores = kTakers;
  expected.lx_read = expected.lx_written = kTakers * kRows * kStick;
  expected.relayout_split = kTakers;
  expected.relayout_bytes = kTakers * (kTakers - 1) * kRows * kStick;  // its own stays where it is
  const auto program = load_program(rows_to_columns(kTakers, kRows).bytes());
  const StepFigures figures = figures_of(*program)[kRing];
  CHECK_EQ(figures.nanoseconds, cost::nanoseconds(expected));
  CHECK_EQ(figures.ring_bytes, expected.relayout_bytes);
  CHECK_EQ(figures.bytes_read, 0);
}

// Core 0 has what 31 others want: they take it as it passes, eight at a time.
TEST(what_several_cores_want_is_sent_to_eight_of_them_at_once) {
  ProgramBuilder builder;
  const uint32_t x = builder.address(2 * kStick, false, kFormat);
  builder.run(builder.step(Opcode::identity, 1, {2}, {builder.device(x, kFormat, {kStick})},
                           lx(builder, {0}, {kStick})));
  const auto from = owned(builder, std::vector<int64_t>(kCores, 0), {0}, {kStick});
  const uint32_t ring = builder.step(Opcode::identity, first_cores(kCores), {2}, {from},
                                     lx(builder, {kTarget}, {kStick}), StepKind::Ring);
  builder.steps[ring].ring = 1;
  builder.run(ring);
  const auto program = load_program(builder.bytes());
  CHECK_EQ(figures_of(*program)[kRing].ring_bytes, 2 * kStick * 31 / 8);
  CHECK_EQ(cost::relayed_bytes(2 * kStick, 8), 2 * kStick);
  CHECK_EQ(program->lx_high_water[0], kTarget + 2 * kStick);
}

// ---- Checked mode ------------------------------------------------------------------------------

namespace {

std::shared_ptr<const DmaDescriptor> whole(int64_t bytes) {
  DmaDescriptor how{kFormat, HostFormat::Float32, {}, bytes, bytes, false};
  how.nests.push_back({{bytes / 4}, {1}, {1}, 0, 0, false});
  return std::make_shared<const DmaDescriptor>(how);
}

// What checked mode has to say of a launch between tensors of one size: the host writes the first
// and reads the second.
std::string checked(const ProgramBuilder& builder, const ProgramNames& names = {}) {
  const auto card = open_software_card({0, int64_t{64} << 20, 2, CheckMode::Memory});
  std::vector<Binding> bindings;
  for (const SymbolRecord& symbol : builder.symbols) {
    bindings.push_back({card->allocate(symbol.bytes, 0), symbol.bytes});
  }
  const auto how = whole(bindings[0].bytes);
  std::vector<float> values(bindings[0].bytes / 4, 1);
  card->wait(card->copy_to_card(0, bindings[0].value, how, values.data(), nullptr));
  const ProgramId program = card->load(builder.bytes(), names);
  try {
    card->wait(card->launch(0, program, bindings));
    card->wait(card->copy_to_host(0, bindings[1].value, how, values.data(), nullptr));
  } catch (const CardFault& fault) {
    return fault.what();
  }
  return "";
}

bool has(const std::string& text, const char* part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "  got: %s\n", text.c_str());
  return false;
}

}  // namespace

TEST(checked_mode_knows_that_cores_wait_before_a_relayout_and_after_it) {
  CHECK_EQ(checked(rows_to_columns(4, 2)), std::string());
  ProgramBuilder reused = rows_to_columns(4, 2);  // the source's place is written right after
  reused.run(reused.step(Opcode::neg, 0b1111, {8}, {lx(reused, {kTarget}, {kStick})},
                         lx(reused, {0}, {kStick})));
  CHECK_EQ(checked(reused), std::string());
}

TEST(checked_mode_finds_parts_that_nobody_wrote) {
  ProgramBuilder builder = rows_to_columns(4, 2);
  const OperandRecord& from = builder.operands[builder.steps[kRing].first_operand];
  builder.bases[from.symbol + 6] = 9;  // core 1, its third part
  const std::string found = checked(builder);
  CHECK(has(found, "in a copy to the host"));
  CHECK(has(found, "was computed from"));
  CHECK(has(found, "bytes [1536, 1540)"));  // its column, row 4
}

TEST(checked_mode_knows_buffers_by_name_on_all_cores) {
  const ProgramNames names{
      "k", {{"load", {"x", "a"}, ""}, {"move", {"a", "b"}, ""}, {"store", {"b", "y"}, ""}}};
  CHECK_EQ(checked(rows_to_columns(4, 2), names), std::string());
  ProgramNames wrong = names;
  wrong.steps[kRing].buffers[0] = "c";
  ProgramBuilder builder = rows_to_columns(4, 2);
  CHECK(has(checked(builder, wrong), "buffers overlap: the stick holds 'a'"));
}
