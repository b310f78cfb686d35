// Steps of a core cut into slices against the same steps one after the other.
#include "../../torch_spyre/csrc/card/slices.h"

#include <algorithm>
#include <random>
#include <vector>

#include "../../torch_spyre/csrc/card/chain.h"
#include "../../torch_spyre/csrc/card/walk.h"
#include "check.h"
#include "launches.h"
#include "programs.h"

namespace {

using namespace spyre;
using spyre::testing::IsaScope;
using spyre::testing::Launch;
using spyre::testing::ProgramBuilder;

constexpr auto kHalf = DataFormat::SEN169_FP16;
constexpr auto kFloat = DataFormat::IEEE_FP32;
// Large enough for slices; the tiles of a row are apart, as in a tiled layout.
constexpr int64_t kRows = 160, kTiles = 8, kPlane = kRows * kStickBytes, kBytes = kTiles * kPlane;

// Memory and scratchpad of one core, and how often steps ran on whatever part of them.
struct Result {
  std::vector<std::byte> memory, lx;
  size_t taken = 0;
  int copies = 0;
};

void run_unit(const Unit& unit) {
  if (unit.size() > 1) {
    run_chain(unit);
  } else {
    fast_steps()[unit[0].record->kind](unit[0]);
  }
}

Result run(const ProgramBuilder& builder, uint64_t seed, bool in_slices) {
  Launch launch(builder, seed);
  Result result;
  std::mt19937_64 random(seed);
  result.lx.resize(kLxBytes);
  for (std::byte& byte : result.lx) byte = static_cast<std::byte>(random());
  const Machine machine{*launch.program, launch.bindings, launch.memory.data(), result.lx.data()};
  std::vector<Unit> units;
  for (uint32_t step = 0; step < launch.program->steps.size(); ++step) {
    const CoreStep bound = bind_step(machine, step, 0, {});
    if (!in_slices || (bound.record->flags & kChained) == 0) units.emplace_back();
    units.back().push_back(bound);
  }
  const auto count_and_run = [&](const Unit& unit) {
    if (is_stick_copy(unit[0]) && is_device(*unit[0].operand[0].record)) ++result.copies;
    run_unit(unit);
  };
  if (in_slices) result.taken = run_in_slices(units, count_and_run);
  for (size_t i = result.taken; i < units.size(); ++i) count_and_run(units[i]);
  result.memory = std::move(launch.memory);
  return result;
}

// Buffers of one core, and steps over its rows and tiles.
struct Rows : ProgramBuilder {
  // Reads and writes go along tiles and rows; a reduction along rows and tiles.
  OperandRecord device_rows(uint32_t symbol, bool rows_first = false) {
    return device(symbol, kHalf, strides(rows_first));
  }
  OperandRecord lx_rows(int64_t base, bool rows_first = false) {
    return operand(Space::Lx, 0, kHalf, Lanes::Vector, {base}, strides(rows_first));
  }
  OperandRecord lx_firsts(int64_t base, const std::vector<int64_t>& stride) {
    return operand(Space::Lx, 0, kFloat, Lanes::First, {base}, stride);
  }
  static std::vector<int64_t> strides(bool rows_first) {
    if (rows_first) return {kStickBytes, kPlane};
    return {kPlane, kStickBytes};
  }

  void copy(const OperandRecord& from, const OperandRecord& to) {
    run(step(Opcode::identity, 1, {kTiles, kRows}, {from}, to));
  }
  void reduce(Opcode opcode, const OperandRecord& from, int64_t to) {
    const auto sums = lx_firsts(to, {kStickBytes, 0});
    run(step(opcode, 1, {kRows, kTiles}, {from}, sums, StepKind::Reduction));
    steps.back().stick_dim = 1;
    steps.back().reduced = 0b10;
  }
  void compute(Opcode opcode, const std::vector<OperandRecord>& in, const OperandRecord& out,
               uint32_t flags = 0) {
    run(step(opcode, 1, {kTiles, kRows}, in, out));
    steps.back().stick_dim = 0;
    steps.back().flags = flags;
  }
};

constexpr int64_t kCopy = 0, kSums = kBytes, kOther = 2 * kBytes;

// A norm of rows: what is copied to LX is scaled there, in place, and written out.
struct Norm : Rows {
  uint32_t x = address(kBytes, true), weight = address(kTiles * kStickBytes);
  uint32_t y = address(kBytes, true);

  explicit Norm(int64_t scaled = kCopy, bool writes_x = false, bool chains = true) {
    copy(device_rows(x), lx_rows(kCopy));
    reduce(Opcode::sum_squares, lx_rows(kCopy, true), kSums);
    const auto factors = lx_firsts(kSums, {0, kStickBytes});
    compute(Opcode::mul, {lx_rows(kCopy), factors}, lx_rows(scaled),
            chains ? uint32_t{kDiscarded} : 0);
    compute(Opcode::mul, {lx_rows(scaled), device(weight, kHalf, {kStickBytes, 0})},
            device_rows(writes_x ? x : y), chains ? uint32_t{kChained} : 0);
  }
};

// The device memory is as if steps ran one after the other; returns the slices' side.
Result check_same(const ProgramBuilder& builder, uint64_t seed = 7) {
  Result sliced;
  for (const kernels::Isa isa : {kernels::Isa::Baseline, kernels::Isa::V3, kernels::Isa::V4}) {
    if (!kernels::isa_available(isa)) continue;
    const IsaScope scope(isa);
    const Result expected = run(builder, seed, false);
    sliced = run(builder, seed, true);
    CHECK(sliced.memory == expected.memory);
  }
  return sliced;
}

bool same_lx(const ProgramBuilder& builder, int64_t begin, int64_t bytes) {
  const Result expected = run(builder, 7, false);
  const Result sliced = run(builder, 7, true);
  return std::equal(sliced.lx.begin() + begin, sliced.lx.begin() + begin + bytes,
                    expected.lx.begin() + begin);
}

}  // namespace

TEST(rows_go_through_a_norm_in_slices_without_a_copy) {
  const Result result = check_same(Norm());
  CHECK_EQ(result.taken, size_t{3});
  CHECK_EQ(result.copies, 0);
  CHECK_EQ(check_same(Norm(kCopy, false, false)).copies, 0);  // without chains as well
}

TEST(a_copy_that_nobody_writes_over_is_made) {
  const Norm norm(kOther);
  CHECK(check_same(norm).copies > 1);  // in slices
  CHECK(same_lx(norm, kCopy, kBytes));
}

TEST(a_copy_is_made_if_what_is_copied_changes_before_it_is_read) {
  Rows rows;
  const uint32_t x = rows.address(kBytes, true), y = rows.address(kBytes, true);
  rows.copy(rows.device_rows(x), rows.lx_rows(kCopy));
  rows.reduce(Opcode::amax, rows.lx_rows(kCopy, true), kSums);
  rows.compute(Opcode::neg, {rows.lx_rows(kCopy)}, rows.device_rows(x));
  rows.compute(Opcode::abs, {rows.lx_rows(kCopy)}, rows.lx_rows(kCopy), kDiscarded);
  rows.compute(Opcode::neg, {rows.lx_rows(kCopy)}, rows.device_rows(y), kChained);
  CHECK(check_same(rows).copies > 1);
}

TEST(a_copy_is_made_if_a_chain_writes_to_what_it_reads) {
  CHECK(check_same(Norm(kCopy, true)).copies > 1);
}

TEST(a_copy_of_which_a_part_is_written_over_is_made) {
  Rows rows;
  const uint32_t x = rows.address(kBytes), y = rows.address(kBytes, true);
  rows.copy(rows.device_rows(x), rows.lx_rows(kCopy));
  rows.reduce(Opcode::sum, rows.lx_rows(kCopy, true), kSums);
  const auto half = rows.lx_rows(kCopy);
  rows.run(rows.step(Opcode::neg, 1, {kTiles / 2, kRows}, {half}, half));
  rows.compute(Opcode::neg, {rows.lx_rows(kCopy)}, rows.device_rows(y));
  CHECK(check_same(rows).copies > 0);
}

TEST(steps_that_meet_in_other_rows_are_not_cut_together) {
  Rows rows;
  const uint32_t x = rows.address(kBytes), y = rows.address(kBytes, true);
  rows.copy(rows.device_rows(x), rows.lx_rows(kCopy));
  rows.reduce(Opcode::sum, rows.lx_rows(kCopy, true), kSums);
  // The last row first.
  const auto backwards = rows.operand(Space::Lx, 0, kHalf, Lanes::Vector,
                                      {(kRows - 1) * kStickBytes}, {kPlane, -kStickBytes});
  rows.compute(Opcode::abs, {backwards}, rows.device_rows(y));
  CHECK_EQ(check_same(rows).taken, size_t{2});
}

TEST(rows_with_a_tail_go_through_in_slices) {
  // fp32 results of fp16 rows: the last iteration along the tiles has one stick of two.
  Rows rows;
  const uint32_t x = rows.address(kBytes);
  const uint32_t y = rows.address(2 * kBytes, true, kFloat);
  rows.copy(rows.device_rows(x), rows.lx_rows(kCopy));
  rows.reduce(Opcode::amax, rows.lx_rows(kCopy, true), kSums);
  const auto firsts = rows.lx_firsts(kSums, {0, kStickBytes});
  rows.compute(Opcode::sub, {rows.lx_rows(kCopy), firsts}, rows.lx_rows(kCopy), kDiscarded);
  auto wide = rows.device(y, kFloat, {2 * kPlane, kStickBytes});
  wide.tile_stride = kPlane;
  wide.tail_tiles = 1;
  rows.compute(Opcode::abs, {rows.lx_rows(kCopy)}, wide, kChained);
  for (size_t i = 2; i < rows.steps.size(); ++i) rows.steps[i].tail_cores = 1;
  const Result result = check_same(rows);
  CHECK_EQ(result.taken, size_t{3});
  CHECK_EQ(result.copies, 0);
}

// Copies, reductions and operations in random order over two places in LX, two tensors that are
// read and written, and sums, some of them along rows that are shifted or go backwards.
TEST(random_steps_give_the_bits_of_one_after_the_other) {
  std::mt19937 random(20261116);
  const auto pick = [&](int most) { return static_cast<int>(random() % (most + 1)); };
  int sliced = 0, forwarded = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rows rows;
    const uint32_t tensors[] = {rows.address(kBytes, true), rows.address(kBytes, true)};
    const auto place = [&] {
      if (pick(2) == 0) return rows.device_rows(tensors[pick(1)]);
      return rows.lx_rows(pick(1) * kOther);
    };
    rows.copy(rows.device_rows(tensors[0]), rows.lx_rows(kCopy));
    rows.reduce(Opcode::sum, rows.lx_rows(kCopy, true), kSums);
    for (int i = 2 + pick(4); i > 0; --i) {
      OperandRecord from = place();
      const OperandRecord to = pick(1) == 0 ? from : place();
      if (pick(9) == 0) {  // the last row first
        rows.bases.push_back((kRows - 1) * kStickBytes + rows.bases[from.base]);
        from.base = static_cast<uint32_t>(rows.bases.size() - 1);
        from.stride[1] = -kStickBytes;
        rows.compute(Opcode::neg, {from}, rows.device_rows(tensors[1]));
        continue;
      }
      const int choice = pick(3);
      if (choice == 0) {
        rows.copy(from, to);
      } else if (choice == 1) {
        rows.reduce(Opcode::amax, rows.lx_rows(pick(1) * kOther, true), kSums);
      } else {
        const auto firsts = rows.lx_firsts(kSums, {0, kStickBytes});
        rows.compute(choice == 2 ? Opcode::sub : Opcode::mul, {from, firsts}, to);
      }
    }
    const Result expected = run(rows, seed, false);
    const Result result = run(rows, seed, true);
    CHECK(result.memory == expected.memory);
    CHECK(result.lx == expected.lx);
    if (result.taken > 0) ++sliced;
    if (result.taken > 0 && result.copies == 0) ++forwarded;
  }
  CHECK(sliced > 30);
  CHECK(forwarded > 5);
}
