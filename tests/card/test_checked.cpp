// Checked mode: every kind of mistake is planted once and must be named; the same program without
// the mistake must pass.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/driver.h"
#include "../../torch_spyre/csrc/card/program.h"
#include "accumulations.h"
#include "check.h"
#include "programs.h"

namespace {

using namespace spyre;
using spyre::testing::ProgramBuilder;
using spyre::testing::RandomAccumulations;
using spyre::testing::RandomPrograms;

constexpr auto kFormat = DataFormat::IEEE_FP32;
constexpr int64_t kLanes = 32;
constexpr int64_t kMemory = int64_t{64} << 20;

// A tensor of `rows` x `columns`, laid out [tiles, rows, 32] with padding at the end of each row.
struct Matrix {
  int64_t rows = 0, columns = 0;
  int64_t tiles() const { return (columns + kLanes - 1) / kLanes; }
  int64_t bytes() const { return tiles() * rows * kStickBytes; }
};

// The elements, and with `padding` the rest of the last tile.
DmaDescriptor descriptor(const Matrix& shape, bool padding) {
  DmaDescriptor how;
  how.device_format = kFormat;
  how.host_format = HostFormat::Float32;
  how.device_bytes = shape.bytes();
  how.host_bytes = shape.rows * shape.columns * 4;
  const int64_t whole = shape.columns / kLanes, rest = shape.columns % kLanes;
  const int64_t last = whole * shape.rows * kLanes;
  how.nests.push_back({{whole, shape.rows, kLanes},
                       {shape.rows * kLanes, kLanes, 1},
                       {kLanes, shape.columns, 1},
                       0,
                       0,
                       false});
  if (rest == 0) return how;
  how.nests.push_back(
      {{shape.rows, rest}, {kLanes, 1}, {shape.columns, 1}, last, whole * kLanes, false});
  if (padding)
    how.nests.push_back({{shape.rows, kLanes - rest}, {kLanes, 1}, {}, last + rest, 0, true});
  return how;
}

class CheckedCard {
 public:
  explicit CheckedCard(CheckMode mode = CheckMode::Memory)
      : card_(open_software_card({0, kMemory, 2, mode})) {}

  Driver& driver() { return *card_; }

  Address allocate(const Matrix& shape) { return card_->allocate(shape.bytes(), 0); }
  Address upload(const Matrix& shape, float value = 1) {
    const Address address = allocate(shape);
    const std::vector<float> values(shape.rows * shape.columns, value);
    const auto how = std::make_shared<const DmaDescriptor>(descriptor(shape, true));
    card_->wait(card_->copy_to_card(0, address, how, values.data(), nullptr));
    return address;
  }
  // What the download found; "" when all was well.
  std::string download(Address address, const Matrix& shape) {
    std::vector<float> values(shape.rows * shape.columns);
    const auto how = std::make_shared<const DmaDescriptor>(descriptor(shape, false));
    return report(
        [&] { card_->wait(card_->copy_to_host(0, address, how, values.data(), nullptr)); });
  }

  // Binds the addresses in order and returns what the launch found.
  std::string launch(const ProgramBuilder& builder, const std::vector<Address>& addresses,
                     const ProgramNames& names = {}) {
    std::vector<Binding> bindings;
    for (size_t i = 0; i < addresses.size(); ++i) {
      bindings.push_back({addresses[i], builder.symbols[i].bytes});
    }
    const ProgramId program = card_->load(builder.bytes(), names);
    return report([&] { card_->wait(card_->launch(0, program, bindings)); });
  }

 private:
  template <typename Work>
  static std::string report(Work work) {
    try {
      work();
      return "";
    } catch (const CardFault& fault) {
      CHECK(fault.kind == CardFault::Kind::CheckFailed);
      return fault.what();
    }
  }

  std::unique_ptr<Driver> card_;
};

bool mentions(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (text.find(part) != std::string::npos) continue;
    std::cout << "'" << part << "' is not in:\n" << text << "\n";
    return false;
  }
  return true;
}

OperandRecord lx(ProgramBuilder& builder, int64_t address, const std::vector<int64_t>& stride) {
  return builder.operand(Space::Lx, 0, kFormat, Lanes::Vector, {address}, stride);
}

// ---- Programs that are right -------------------------------------------------------------------

std::vector<std::byte> bytes_after(Driver& card, const ProgramBuilder& builder, uint64_t seed,
                                   bool& is_clean) {
  std::mt19937_64 random(seed);
  std::vector<Binding> bindings;
  std::vector<std::byte> result;
  // Padding of results comes along: all bytes shall agree.
  const auto raw = [](int64_t bytes) {
    DmaDescriptor how{DataFormat::SENINT8, HostFormat::Int8, {}, bytes, bytes, true};
    how.nests.push_back({{bytes}, {1}, {1}, 0, 0, false});
    return std::make_shared<const DmaDescriptor>(how);
  };
  for (const SymbolRecord& symbol : builder.symbols) {
    if (symbol.kind == static_cast<uint8_t>(SymbolKind::Extent)) {
      bindings.push_back({random() % (symbol.bytes + 1), 0});
      continue;
    }
    if (symbol.kind == static_cast<uint8_t>(SymbolKind::Scalar)) {
      bindings.push_back({0, 0});
      continue;
    }
    std::vector<int8_t> values(symbol.bytes);
    // Indices of gathers stay small: whole words from 0 to 3.
    for (int64_t i = 0; i < symbol.bytes; ++i) values[i] = i % 4 == 0 ? random() % 4 : 0;
    const Address address = card.allocate(symbol.bytes, 0);
    card.wait(card.copy_to_card(0, address, raw(symbol.bytes), values.data(), nullptr));
    bindings.push_back({address, symbol.bytes});
  }
  is_clean = true;
  try {
    card.wait(card.launch(0, card.load(builder.bytes()), bindings));
  } catch (const CardFault& fault) {
    is_clean = fault.kind != CardFault::Kind::CheckFailed;
    if (!is_clean) std::cout << fault.what() << "\n";
    card.reset();
  }
  for (size_t i = 0; i < bindings.size(); ++i) {
    if (builder.symbols[i].kind != static_cast<uint8_t>(SymbolKind::Address)) continue;
    std::vector<int8_t> values(bindings[i].bytes);
    card.wait(
        card.copy_to_host(0, bindings[i].value, raw(bindings[i].bytes), values.data(), nullptr));
    const auto* first = reinterpret_cast<const std::byte*>(values.data());
    result.insert(result.end(), first, first + values.size());
    card.free(bindings[i].value);
  }
  return result;
}

}  // namespace

TEST(random_programs_pass_and_give_the_bits_of_the_unchecked_card) {
  const auto checked = open_software_card({0, kMemory, 2, CheckMode::Memory});
  const auto fast = open_software_card({0, kMemory, 2, CheckMode::Off});
  RandomPrograms programs(20241101);
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const ProgramBuilder builder = programs.next();
    bool is_clean = false, ignored = false;
    const auto result = bytes_after(*checked, builder, seed, is_clean);
    const bool same = result == bytes_after(*fast, builder, seed, ignored);
    CHECK(same);
    CHECK(is_clean);
    if (!same || !is_clean) {
      std::cout << "random program " << seed << "\n";
      return;
    }
  }
  const Counters counters = checked->counters();
  CHECK_EQ(counters.checked_bytes_written, counters.bytes_written);
  CHECK_EQ(counters.checked_bytes_read, counters.bytes_read);
  CHECK_EQ(fast->counters().checked_bytes_read, 0);
}

// Partners exchange partial results, which is no race; what they write is counted once.
TEST(random_rings_pass_and_give_the_bits_of_the_unchecked_card) {
  const auto checked = open_software_card({0, kMemory, 2, CheckMode::Memory});
  const auto fast = open_software_card({0, kMemory, 2, CheckMode::Off});
  RandomAccumulations programs(20241102);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const ProgramBuilder& builder : {programs.ring_reduction(), programs.ring_matmul()}) {
      bool is_clean = false, ignored = false;
      const auto result = bytes_after(*checked, builder, seed, is_clean);
      CHECK(result == bytes_after(*fast, builder, seed, ignored));
      CHECK(is_clean);
    }
  }
  CHECK_EQ(checked->counters().checked_bytes_written, checked->counters().bytes_written);
}

// Three cores, a shared operand and a loop: distinct sticks per step, each iteration anew.
TEST(touched_sticks_agree_with_the_model) {
  constexpr int64_t kLoops = 3, kRows = 5;
  ProgramBuilder builder;
  const Matrix slices{3 * kLoops * kRows, 32}, shared{kRows, 32};
  const uint32_t x = builder.address(slices.bytes());
  const uint32_t bias = builder.address(shared.bytes());
  const uint32_t y = builder.address(slices.bytes(), true);
  const std::vector<int64_t> bases = {0, kLoops * kRows * 128, 2 * kLoops * kRows * 128};
  OperandRecord from = builder.device(x, kFormat, {128}, bases);
  OperandRecord to = builder.device(y, kFormat, {128}, bases);
  from.loop_stride[0] = to.loop_stride[0] = kRows * 128;
  const uint32_t step =
      builder.step(Opcode::add, 7, {kRows}, {from, builder.device(bias, kFormat, {128})}, to);
  builder.loop(kLoops, 1);
  builder.run(step);
  CheckedCard card;
  CHECK_EQ(card.launch(builder, {card.upload(slices), card.upload(shared), card.allocate(slices)}),
           "");
  const Counters counters = card.driver().counters();
  CHECK_EQ(counters.checked_bytes_read, kLoops * (3 + 1) * kRows * 128);
  CHECK_EQ(counters.checked_bytes_written, kLoops * 3 * kRows * 128);
  CHECK_EQ(counters.checked_bytes_read, counters.bytes_read);
  CHECK_EQ(counters.checked_bytes_written, counters.bytes_written);
}

// ---- Bytes that hold nothing -------------------------------------------------------------------

TEST(a_read_of_memory_that_nobody_wrote_names_kernel_op_core_buffer_and_source_line) {
  const Matrix shape{4, 32};
  ProgramBuilder builder;
  const uint32_t x = builder.address(shape.bytes());
  const uint32_t y = builder.address(shape.bytes(), true);
  builder.run(builder.step(Opcode::abs, 1U << 5, {4}, {builder.device(x, kFormat, {128})},
                           builder.device(y, kFormat, {128})));
  CheckedCard card;
  const ProgramNames names{"relu_0", {{"buf1", {"arg0_1", "buf1"}, "model.py:41 y = x.abs()"}}};
  const std::string found =
      card.launch(builder, {card.allocate(shape), card.allocate(shape)}, names);
  CHECK(
      mentions(found, {"kernel 'relu_0'", "step 0 (abs, 'buf1')", "core 5", "input 0 'arg0_1'",
                       "symbol 0, bytes [0, 4)", "was never written", "model.py:41 y = x.abs()"}));
  // Sticky, as other faults.
  CHECK(card.download(card.allocate(shape), shape).starts_with(found));
  card.driver().reset();
  const Address fresh = card.upload(shape);
  CHECK_EQ(card.launch(builder, {fresh, card.allocate(shape)}, names), "");
}

TEST(the_host_may_read_what_was_written_and_nothing_else) {
  const Matrix shape{3, 20}, wider{3, 32};
  CheckedCard card;
  CHECK_EQ(card.download(card.upload(shape), shape), "");
  CHECK(mentions(card.download(card.upload(shape), wider), {"copy to the host", "is padding"}));
  card.driver().reset();
  CHECK(
      mentions(card.download(card.allocate(shape), shape), {"was never written", "bytes [0, 4)"}));
}

TEST(memory_that_is_allocated_again_is_as_if_never_written) {
  const Matrix shape{3, 20};
  CheckedCard card;
  const Address first = card.upload(shape);
  card.driver().free(first);
  const Address second = card.allocate(shape);
  CHECK_EQ(first, second);
  CHECK(mentions(card.download(second, shape), {"was never written"}));
}

// where(condition, x, 0) is valid where the condition is false, whatever x holds there.
TEST(a_selection_is_as_good_as_what_it_selects) {
  const Matrix shape{2, 32};
  for (const float condition : {0.0F, 1.0F}) {
    ProgramBuilder builder;
    const Matrix padded{2, 20};
    const uint32_t c = builder.address(shape.bytes());
    const uint32_t x = builder.address(padded.bytes());
    const uint32_t y = builder.address(shape.bytes(), true);
    auto zero =
        builder.operand(Space::Constant, builder.constant(0), kFormat, Lanes::Vector, {0}, {});
    builder.run(
        builder.step(Opcode::where, 1, {2},
                     {builder.device(c, kFormat, {128}), builder.device(x, kFormat, {128}), zero},
                     builder.device(y, kFormat, {128})));
    CheckedCard card;
    const Address out = card.allocate(shape);
    CHECK_EQ(card.launch(builder, {card.upload(shape, condition), card.upload(padded), out}), "");
    CHECK_EQ(card.download(out, shape).empty(), condition == 0);
  }
}

// ---- Padding -----------------------------------------------------------------------------------

std::vector<int64_t> bases(bool is_ring, int64_t second) {
  return is_ring ? std::vector<int64_t>{0, second} : std::vector<int64_t>{0};
}

// Sums 3 rows of 40 elements along the stick: two tiles, 24 lanes of padding. A ring has a tile on
// each of two cores.
std::string sum_of_rows(CheckMode mode, int64_t valid, float value = 1, bool is_ring = false) {
  const Matrix in{3, 40}, out{3, 1};
  ProgramBuilder builder;
  const uint32_t x = builder.address(in.bytes());
  const uint32_t y = builder.address(out.bytes(), true);
  const uint32_t step = builder.step(
      Opcode::sum, is_ring ? 0b11 : 1, {3, is_ring ? 1 : 2},
      {builder.device(x, kFormat, {128, 3 * 128}, bases(is_ring, 3 * 128))},
      builder.operand(Space::Device, y, kFormat, Lanes::First, {0}, {128, 0}), StepKind::Reduction);
  builder.steps[step].stick_dim = 1;
  builder.steps[step].reduced = 2;
  builder.steps[step].ring = is_ring ? 2 : 0;
  if (valid > 0) builder.mask(1, valid, bases(is_ring, kLanes));
  builder.run(step);
  CheckedCard card(mode);
  const Address result = card.allocate(out);
  const std::string found = card.launch(builder, {card.upload(in, value), result});
  if (found.empty()) CHECK_EQ(card.download(result, out), "");
  return found;
}

TEST(a_reduction_without_a_mask_is_told_which_lane_is_padding) {
  CHECK_EQ(sum_of_rows(CheckMode::Memory, 40), "");
  const std::string found = sum_of_rows(CheckMode::Memory, 0);
  CHECK(mentions(found, {"step 0 (sum)", "is padding", "(lane 8)", "bytes [416, 420)"}));
  CHECK(mentions(sum_of_rows(CheckMode::Memory, 41), {"is padding", "(lane 8)"}));
}

TEST(a_partner_of_a_ring_is_told_which_lane_is_padding) {
  CHECK_EQ(sum_of_rows(CheckMode::Memory, 40, 1, true), "");
  CHECK_EQ(sum_of_rows(CheckMode::NonFinite, 40, 1, true), "");
  const std::string found = sum_of_rows(CheckMode::Memory, 41, 1, true);
  CHECK(mentions(found, {"step 0 (sum)", "core 1", "is padding", "(lane 8)"}));
}

// Down the rows every lane stands for itself: padding columns stay padding.
TEST(a_reduction_of_rows_carries_padding_columns_along) {
  const Matrix in{3, 20}, out{1, 20};
  for (const bool reads_too_far : {false, true}) {
    ProgramBuilder builder;
    const Matrix space{4, 20};
    const uint32_t x = builder.address(space.bytes());
    const uint32_t y = builder.address(out.bytes(), true);
    const uint32_t step =
        builder.step(Opcode::amax, 1, {reads_too_far ? 4 : 3}, {builder.device(x, kFormat, {128})},
                     builder.device(y, kFormat, {0}), StepKind::Reduction);
    builder.steps[step].reduced = 1;
    builder.run(step);
    CheckedCard card;
    const Address source = card.allocate(space);
    const std::vector<float> values(60, 1);
    card.driver().copy_to_card(0, source,
                               std::make_shared<const DmaDescriptor>(descriptor(in, true)),
                               values.data(), nullptr);
    const Address result = card.allocate(out);
    const std::string found = card.launch(builder, {source, result});
    if (reads_too_far) {
      CHECK(mentions(found, {"step 0 (amax)", "was never written", "bytes [384, 388)"}));
    } else {
      CHECK_EQ(found, "");
      CHECK_EQ(card.download(result, out), "");
      CHECK(mentions(card.download(result, Matrix{1, 32}), {"is padding"}));
    }
  }
}

// [2, 40] @ [40, 20]: k has 24 lanes of padding in A; n has 12 in B and C. A ring has a stick of k
// on each of two cores.
std::string matmul(int64_t valid_k, bool has_all_rows = true, bool is_ring = false) {
  const Matrix a{2, 40}, b{has_all_rows ? 64 : 40, 20}, c{2, 20};
  const Matrix room{64, 20};
  ProgramBuilder builder;
  const uint32_t left = builder.address(a.bytes());
  const uint32_t right = builder.address(room.bytes());
  const uint32_t into = builder.address(c.bytes(), true);
  OperandRecord columns =
      builder.device(right, kFormat, {0, 0, 32 * 128}, bases(is_ring, 32 * 128));
  columns.tile_stride = 128;
  // Dimensions: rows, sticks of n, sticks of k.
  const OperandRecord rows =
      builder.device(left, kFormat, {128, 0, 2 * 128}, bases(is_ring, 2 * 128));
  const uint32_t step =
      builder.step(Opcode::batchmatmul, is_ring ? 0b11 : 1, {2, 1, is_ring ? 1 : 2},
                   {rows, columns}, builder.device(into, kFormat, {128, 0, 0}), StepKind::Matmul);
  builder.steps[step].ring = is_ring ? 2 : 0;
  builder.steps[step].stick_dim = 1;
  builder.steps[step].lane_dim = 2;
  builder.steps[step].reduced = 4;
  if (valid_k > 0) builder.mask(2, valid_k, bases(is_ring, kLanes));
  builder.run(step);
  CheckedCard card;
  const Address weights = card.allocate(room);
  const std::vector<float> values(b.rows * b.columns, 1);
  card.driver().copy_to_card(0, weights, std::make_shared<const DmaDescriptor>(descriptor(b, true)),
                             values.data(), nullptr);
  const Address result = card.allocate(c);
  const std::string found = card.launch(builder, {card.upload(a), weights, result});
  if (found.empty()) {
    CHECK_EQ(card.download(result, c), "");
    CHECK(mentions(card.download(result, Matrix{2, 32}), {"is padding", "bytes [80, 84)"}));
  }
  return found;
}

TEST(a_matmul_masks_k_and_carries_padding_columns_along) {
  CHECK_EQ(matmul(40), "");
  CHECK_EQ(matmul(40, /*has_all_rows=*/false), "");
  CHECK(mentions(matmul(0), {"step 0 (batchmatmul)", "input 0", "is padding", "(lane 8)"}));
  CHECK(mentions(matmul(41), {"input 0", "is padding", "(lane 8)"}));
  CHECK_EQ(matmul(40, false, /*is_ring=*/true), "");
  CHECK(mentions(matmul(41, true, /*is_ring=*/true), {"core 1", "input 0", "is padding"}));
}

// [2, 40] @ [40, 128] with bytes as columns: the rows' two sticks are part of an iteration of 128
// elements of k, in which the second has 8 that are not padding.
TEST(a_matmul_of_byte_columns_masks_k_inside_an_iteration) {
  const Matrix a{2, 40}, c{2, 128};
  for (const int64_t valid : {40, 41}) {
    ProgramBuilder builder;
    const uint32_t left = builder.address(a.bytes());
    const uint32_t right = builder.address(64 * 128, true, DataFormat::SENINT8);
    const uint32_t into = builder.address(c.bytes(), true);
    OperandRecord rows = builder.device(left, kFormat, {128, 0, 0});
    rows.tile_stride = 2 * 128;
    OperandRecord columns = builder.device(right, DataFormat::SENINT8, {0, 0, 0});
    columns.tile_stride = 128;
    OperandRecord result = builder.device(into, kFormat, {128, 0, 0});
    result.tile_stride = 2 * 128;
    OperandRecord one =
        builder.operand(Space::Constant, 0, DataFormat::IEEE_INT32, Lanes::Vector, {0}, {0});
    one.symbol = builder.constant(3);
    builder.run(builder.step(Opcode::identity_int, 1, {64}, {one},
                             builder.device(right, DataFormat::SENINT8, {128})));
    const uint32_t step = builder.step(Opcode::batchmatmul_int8, 1, {2, 1, 1}, {rows, columns},
                                       result, StepKind::Matmul);
    builder.steps[step].stick_dim = 1;
    builder.steps[step].lane_dim = 2;
    builder.steps[step].reduced = 4;
    builder.mask(2, valid);
    builder.run(step);
    CheckedCard card;
    const Address weights = card.driver().allocate(64 * 128, 0);
    const Address sums = card.allocate(c);
    const std::string found = card.launch(builder, {card.upload(a), weights, sums});
    if (valid == 40) {
      CHECK_EQ(found, "");
      CHECK_EQ(card.download(sums, c), "");
    } else {
      CHECK(mentions(found, {"step 1 (batchmatmul_int8)", "input 0", "is padding", "(lane 40)",
                             "bytes [288, 292)"}));
    }
  }
}

TEST(an_index_must_be_valid) {
  const Matrix table{4, 32}, out{3, 32};
  for (const bool is_written : {true, false}) {
    ProgramBuilder builder;
    const uint32_t x = builder.address(table.bytes());
    const uint32_t index = builder.address(128, false, DataFormat::IEEE_INT32);
    const uint32_t y = builder.address(out.bytes(), true);
    OperandRecord rows = builder.device(x, kFormat, {0});
    rows.tile_stride = 128;
    const uint32_t step = builder.step(
        Opcode::gather, 1, {3},
        {rows,
         builder.operand(Space::Device, index, DataFormat::IEEE_INT32, Lanes::Element, {0}, {4})},
        builder.device(y, kFormat, {128}), StepKind::Gather);
    builder.mask(kNoStickDim, 4);
    builder.run(step);
    CheckedCard card;
    const Address indices = card.driver().allocate(128, 0);
    const std::vector<int32_t> values = {2, 0, 3};
    DmaDescriptor how{DataFormat::IEEE_INT32, HostFormat::Int32, {}, 128, 12};
    how.nests.push_back({{is_written ? 3 : 2}, {1}, {1}, 0, 0, false});
    card.driver().copy_to_card(0, indices, std::make_shared<const DmaDescriptor>(how),
                               values.data(), nullptr);
    const Address result = card.allocate(out);
    const std::string found = card.launch(builder, {card.upload(table), indices, result});
    if (is_written) {
      CHECK_EQ(found, "");
      CHECK_EQ(card.download(result, out), "");
    } else {
      CHECK(mentions(found, {"used as an index", "input 1", "bytes [8, 12)"}));
    }
  }
}

// ---- Scratchpad --------------------------------------------------------------------------------

// a = |x| and b = -x in LX, then y = a + b; `distance` bytes lie between a and b.
std::string two_buffers(int64_t distance, bool has_names) {
  const Matrix shape{4, 32};
  ProgramBuilder builder;
  const uint32_t x = builder.address(shape.bytes());
  const uint32_t y = builder.address(shape.bytes(), true);
  const auto from = builder.device(x, kFormat, {128});
  const auto a = lx(builder, 0, {128}), b = lx(builder, distance, {128});
  builder.run(builder.step(Opcode::abs, 1, {4}, {from}, a));
  builder.run(builder.step(Opcode::neg, 1, {4}, {from}, b));
  builder.run(builder.step(Opcode::add, 1, {4}, {a, b}, builder.device(y, kFormat, {128})));
  ProgramNames names;
  if (has_names) {
    names = {"kernel_0",
             {{"buf0", {"arg0", "buf0"}, ""},
              {"buf1", {"arg0", "buf1"}, ""},
              {"buf2", {"buf0", "buf1", "buf2"}, "model.py:7 return a + b"}}};
  }
  CheckedCard card;
  return card.launch(builder, {card.upload(shape), card.allocate(shape)}, names);
}

TEST(scratchpad_buffers_that_overlap_while_both_live_are_named) {
  CHECK_EQ(two_buffers(4 * 128, true), "");
  const std::string found = two_buffers(2 * 128, true);
  CHECK(mentions(found, {"kernel 'kernel_0'", "step 2 (add, 'buf2')", "buffers overlap",
                         "holds 'buf1'", "step 1 (neg, 'buf1')", "input 0 'buf0'",
                         "LX, bytes [256, 384)", "model.py:7 return a + b"}));
  CHECK(mentions(two_buffers(0, true), {"buffers overlap", "LX, bytes [0, 128)"}));
}

TEST(scratchpad_buffers_that_overlap_in_part_are_found_without_names) {
  CHECK_EQ(two_buffers(4 * 128, false), "");
  CHECK(mentions(two_buffers(2 * 128, false), {"buffers overlap", "step 1 (neg)", "LX"}));
}

TEST(the_scratchpad_holds_nothing_when_a_kernel_starts) {
  const Matrix shape{2, 32};
  CheckedCard card;
  const Address x = card.upload(shape), y = card.allocate(shape);
  for (const bool writes_first : {true, false}) {
    ProgramBuilder builder;
    const uint32_t in = builder.address(shape.bytes());
    const uint32_t out = builder.address(shape.bytes(), true);
    const auto kept = lx(builder, 512, {128});
    const auto from = builder.device(in, kFormat, {128});
    if (writes_first) builder.run(builder.step(Opcode::abs, 1, {2}, {from}, kept));
    builder.run(builder.step(Opcode::neg, 1, {2}, {kept}, builder.device(out, kFormat, {128})));
    const std::string found = card.launch(builder, {x, y});
    CHECK_EQ(found.empty(), writes_first);
    if (!writes_first) CHECK(mentions(found, {"was never written", "LX, bytes [512, 516)"}));
  }
}

// ---- Cores -------------------------------------------------------------------------------------

// Two cores take `each` of 8 rows, the second from row `second` on; then one core sums all.
std::string split(int64_t each, int64_t second) {
  const Matrix shape{8, 32}, out{1, 32};
  ProgramBuilder builder;
  const uint32_t x = builder.address(shape.bytes());
  const uint32_t y = builder.address(shape.bytes(), true);
  const uint32_t z = builder.address(out.bytes(), true);
  const std::vector<int64_t> bases = {0, second * 128};
  builder.run(builder.step(Opcode::abs, 0b1001, {each}, {builder.device(x, kFormat, {128}, bases)},
                           builder.device(y, kFormat, {128}, bases)));
  const uint32_t sum = builder.step(Opcode::sum, 1, {8}, {builder.device(y, kFormat, {128})},
                                    builder.device(z, kFormat, {0}), StepKind::Reduction);
  builder.steps[sum].reduced = 1;
  builder.steps[sum].flags = kBarrierBefore;
  builder.run(sum);
  CheckedCard card;
  return card.launch(builder, {card.upload(shape), card.allocate(shape), card.allocate(out)});
}

TEST(a_wrong_division_of_work_shows) {
  CHECK_EQ(split(4, 4), "");
  CHECK(mentions(split(5, 3), {"step 0 (abs)", "core 3", "a race", "core 0", "same step",
                               "the result: symbol 1, bytes [384, 512)"}));
  CHECK(mentions(split(3, 5), {"step 1 (sum)", "was never written", "bytes [384, 388)"}));
}

// Each core writes its half of y and then reads the other's.
std::string exchange(bool has_barrier) {
  const Matrix shape{8, 32};
  ProgramBuilder builder;
  const uint32_t x = builder.address(shape.bytes());
  const uint32_t y = builder.address(shape.bytes(), true);
  const uint32_t z = builder.address(shape.bytes(), true);
  const std::vector<int64_t> own = {0, 4 * 128}, other = {4 * 128, 0};
  builder.run(builder.step(Opcode::abs, 3, {4}, {builder.device(x, kFormat, {128}, own)},
                           builder.device(y, kFormat, {128}, own)));
  const uint32_t second =
      builder.step(Opcode::neg, 3, {4}, {builder.device(y, kFormat, {128}, other)},
                   builder.device(z, kFormat, {128}, own));
  if (has_barrier) builder.steps[second].flags = kBarrierBefore;
  builder.run(second);
  CheckedCard card;
  return card.launch(builder, {card.upload(shape), card.allocate(shape), card.allocate(shape)});
}

TEST(a_read_of_another_cores_result_needs_a_barrier) {
  CHECK_EQ(exchange(true), "");
  CHECK(mentions(exchange(false), {"step 1 (neg)", "core 0", "a race", "reads a stick",
                                   "core 1, in step 0 (abs)", "barrier flag of step 1"}));
}

// In place, while the other core still reads: also when the reader comes first.
TEST(a_write_over_what_another_core_reads_is_a_race) {
  const Matrix shape{2, 32};
  ProgramBuilder builder;
  const uint32_t x = builder.address(shape.bytes(), true);
  const std::vector<int64_t> own = {0, 128}, all = {0, 0};
  builder.run(
      builder.step(Opcode::add, 3, {1},
                   {builder.device(x, kFormat, {128}, own), builder.device(x, kFormat, {128}, all)},
                   builder.device(x, kFormat, {128}, own)));
  CheckedCard card;
  CHECK(mentions(card.launch(builder, {card.upload(shape)}),
                 {"a race", "core 1 reads a stick that another core writes", "core 0"}));
}

// ---- Values ------------------------------------------------------------------------------------

TEST(the_first_step_that_makes_nan_of_finite_numbers_is_named) {
  const Matrix shape{2, 20};
  const auto run = [&](CheckMode mode, float value) {
    ProgramBuilder builder;
    const uint32_t x = builder.address(shape.bytes());
    const uint32_t y = builder.address(shape.bytes(), true);
    const uint32_t z = builder.address(shape.bytes(), true);
    builder.run(builder.step(Opcode::sqrt, 1, {2}, {builder.device(x, kFormat, {128})},
                             builder.device(y, kFormat, {128})));
    builder.run(builder.step(Opcode::neg, 1, {2}, {builder.device(y, kFormat, {128})},
                             builder.device(z, kFormat, {128})));
    CheckedCard card(mode);
    return card.launch(builder,
                       {card.upload(shape, value), card.allocate(shape), card.allocate(shape)});
  };
  CHECK(mentions(run(CheckMode::NonFinite, -1), {"step 0 (sqrt)", "the first NaN", "finite"}));
  CHECK_EQ(run(CheckMode::NonFinite, 4), "");
  CHECK_EQ(run(CheckMode::NonFinite, -std::numeric_limits<float>::infinity()), "");
  CHECK_EQ(run(CheckMode::Memory, -1), "");
  CHECK_EQ(sum_of_rows(CheckMode::NonFinite, 40), "");
  CHECK(mentions(sum_of_rows(CheckMode::NonFinite, 40, 3e38F), {"step 0 (sum)", "the first inf"}));
}

TEST(names_must_be_those_of_the_program) {
  const Matrix shape{1, 32};
  ProgramBuilder builder;
  const uint32_t y = builder.address(shape.bytes(), true);
  auto zero =
      builder.operand(Space::Constant, builder.constant(0), kFormat, Lanes::Vector, {0}, {});
  builder.run(builder.step(Opcode::identity, 1, {1}, {zero}, builder.device(y, kFormat, {128})));
  CheckedCard card;
  bool is_refused = false;
  try {
    card.driver().load(builder.bytes(), {"kernel", {{}, {}}});
  } catch (const ProgramError&) {
    is_refused = true;
  }
  CHECK(is_refused);
}
