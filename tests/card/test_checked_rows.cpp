// Checked mode of steps that follow an index, sort or scan: mistakes are planted and must be named.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/driver.h"
#include "../../torch_spyre/csrc/card/program.h"
#include "check.h"
#include "tables_and_rows.h"

namespace {

using namespace spyre;
using namespace spyre::testing;

constexpr int64_t kMemory = int64_t{64} << 20;
constexpr auto kFloat = DataFormat::IEEE_FP32;
constexpr auto kInt = DataFormat::IEEE_INT32;

std::shared_ptr<const DmaDescriptor> elements(DataFormat format, HostFormat host, int64_t device,
                                              int64_t count) {
  DmaDescriptor how{format, host, {}, device, count * 4, false};
  how.nests.push_back({{count}, {1}, {1}, 0, 0, false});
  return std::make_shared<const DmaDescriptor>(how);
}

class CheckedCard {
 public:
  explicit CheckedCard(CheckMode mode = CheckMode::Memory)
      : card_(open_software_card({0, kMemory, 2, mode})) {}

  // A stick of which the first elements are written.
  Address floats(const std::vector<float>& values) {
    return upload(kFloat, HostFormat::Float32, values.data(), values.size());
  }
  Address ints(const std::vector<int32_t>& values) {
    return upload(kInt, HostFormat::Int32, values.data(), values.size());
  }

  // What the launch found; "" when all was well.
  std::string launch(const ProgramBuilder& builder, const std::vector<Address>& addresses) {
    std::vector<Binding> bindings;
    for (size_t i = 0; i < addresses.size(); ++i) {
      bindings.push_back({addresses[i], builder.symbols[i].bytes});
    }
    const ProgramId program = card_->load(builder.bytes());
    return report([&] { card_->wait(card_->launch(0, program, bindings)); });
  }

  std::string download(Address address, int64_t count) {
    std::vector<float> values(count);
    const auto how = elements(kFloat, HostFormat::Float32, kStickBytes, count);
    return report(
        [&] { card_->wait(card_->copy_to_host(0, address, how, values.data(), nullptr)); });
  }

 private:
  Address upload(DataFormat format, HostFormat host, const void* values, size_t count) {
    const Address address = card_->allocate(kStickBytes, 0);
    if (count == 0) return address;
    const auto how = elements(format, host, kStickBytes, static_cast<int64_t>(count));
    card_->wait(card_->copy_to_card(0, address, how, values, nullptr));
    return address;
  }

  template <typename Work>
  std::string report(Work work) {
    try {
      work();
      return "";
    } catch (const CardFault& fault) {
      const bool is_index = fault.kind == CardFault::Kind::IndexError;
      CHECK(is_index || fault.kind == CardFault::Kind::CheckFailed);
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

OperandRecord element(ProgramBuilder& builder, uint32_t symbol, DataFormat format, int64_t stride) {
  return builder.operand(Space::Device, symbol, format, Lanes::Element, {0}, {stride});
}

// `count` elements of a table of 5 (a stick of fp32 each).
ProgramBuilder indexed(Opcode opcode, int64_t count) {
  const bool is_gather = opcode == Opcode::gather;
  ProgramBuilder builder;
  const uint32_t first = builder.address(kStickBytes, false, kFloat);
  const uint32_t index = builder.address(kStickBytes, false, kInt);
  const uint32_t last = builder.address(kStickBytes, true, kFloat);
  auto table = element(builder, is_gather ? first : last, kFloat, 0);
  table.tile_stride = 4;
  const auto which = element(builder, index, kInt, 4);
  const auto other = element(builder, is_gather ? last : first, kFloat, 4);
  builder.run(is_gather
                  ? builder.step(opcode, 1, {count}, {table, which}, other, StepKind::Gather)
                  : builder.step(opcode, 1, {count}, {other, which}, table, StepKind::Scatter));
  builder.mask(kNoStickDim, 5);
  return builder;
}

ProgramBuilder row(Opcode opcode, StepKind kind, int64_t length) {
  ProgramBuilder builder;
  const bool is_position = kind == StepKind::Argsort || gives_positions(opcode);
  const DataFormat result = is_position ? kInt : kFloat;
  const uint32_t x = builder.address(kStickBytes, false, kFloat);
  const uint32_t y = builder.address(kStickBytes, true, result);
  const auto from = element(builder, x, kFloat, 4);
  const auto to = element(builder, y, result, 4);
  builder.run(builder.step(opcode, 1, {length}, {from}, to, kind));
  builder.steps[0].reduced = 1;
  return builder;
}

// What is bound, after the launch; nothing after an index that a table does not have.
std::vector<std::byte> bytes_after(Driver& card, const ProgramBuilder& builder, uint64_t seed,
                                   bool& is_clean) {
  std::mt19937_64 random(seed);
  std::vector<Binding> bindings;
  const auto raw = [](int64_t bytes) {
    DmaDescriptor how{DataFormat::SENINT8, HostFormat::Int8, {}, bytes, bytes, true};
    how.nests.push_back({{bytes}, {1}, {1}, 0, 0, false});
    return std::make_shared<const DmaDescriptor>(how);
  };
  for (const SymbolRecord& symbol : builder.symbols) {
    if (symbol.kind != static_cast<uint8_t>(SymbolKind::Address)) {
      bindings.push_back({static_cast<uint64_t>(symbol.bytes), 0});
      continue;
    }
    std::vector<int8_t> values(symbol.bytes);  // every word is an index of one of two rows
    for (int64_t i = 0; i < symbol.bytes; i += 4) values[i] = static_cast<int8_t>(random() % 2);
    const Address address = card.allocate(symbol.bytes, 0);
    card.wait(card.copy_to_card(0, address, raw(symbol.bytes), values.data(), nullptr));
    bindings.push_back({address, symbol.bytes});
  }
  is_clean = true;
  bool has_ended = true;
  try {
    card.wait(card.launch(0, card.load(builder.bytes()), bindings));
  } catch (const CardFault& fault) {
    is_clean = fault.kind == CardFault::Kind::IndexError;
    has_ended = false;
    if (!is_clean) std::cout << fault.what() << "\n";
    card.reset();
  }
  std::vector<std::byte> result;
  for (const Binding& bound : bindings) {
    if (bound.bytes == 0) continue;
    std::vector<int8_t> values(bound.bytes);
    card.wait(card.copy_to_host(0, bound.value, raw(bound.bytes), values.data(), nullptr));
    const auto* first = reinterpret_cast<const std::byte*>(values.data());
    result.insert(result.end(), first, first + values.size());
    card.free(bound.value);
  }
  return has_ended ? result : std::vector<std::byte>{};
}

}  // namespace

TEST(random_programs_pass_and_give_the_bits_of_the_unchecked_card) {
  const auto checked = open_software_card({0, kMemory, 2, CheckMode::Memory});
  const auto fast = open_software_card({0, kMemory, 2, CheckMode::Off});
  RandomRows programs(77);
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const ProgramBuilder builder = seed % 4 == 0   ? programs.gather_elements()
                                   : seed % 4 == 1 ? programs.scatter()
                                   : seed % 4 == 2 ? programs.argsort()
                                                   : programs.scan();
    bool is_clean = false, ignored = false;
    const auto result = bytes_after(*checked, builder, seed, is_clean);
    CHECK(result == bytes_after(*fast, builder, seed, ignored));
    CHECK(is_clean);
  }
}

TEST(touched_sticks_of_sorts_and_scans_agree_with_the_model) {
  const auto card = open_software_card({0, kMemory, 2, CheckMode::Memory});
  RandomRows programs(78);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    bool is_clean = false;
    bytes_after(*card, seed % 2 == 0 ? programs.argsort() : programs.scan(), seed, is_clean);
  }
  const Counters counters = card->counters();
  CHECK_EQ(counters.checked_bytes_written, counters.bytes_written);
  CHECK_EQ(counters.checked_bytes_read, counters.bytes_read);
}

TEST(an_index_must_be_written) {
  for (const Opcode opcode : {Opcode::gather, Opcode::scatter, Opcode::scatter_add}) {
    const bool is_gather = opcode == Opcode::gather;
    CheckedCard card;
    const std::vector<float> five(5, 1), three(3, 1);
    const auto first = card.floats(is_gather ? five : three);
    const auto last = card.floats(is_gather ? std::vector<float>{} : five);
    CHECK_EQ(card.launch(indexed(opcode, 3), {first, card.ints({2, 0, 4}), last}), "");
    CHECK(mentions(card.launch(indexed(opcode, 3), {first, card.ints({2, 0}), last}),
                   {"used as an index", "input 1", "bytes [8, 12)"}));
  }
}

TEST(an_index_outside_is_the_fault_that_it_is_without_checks) {
  for (const Opcode opcode : {Opcode::gather, Opcode::scatter_add}) {
    CheckedCard card;
    const std::vector<float> five(5, 1);
    CHECK(mentions(
        card.launch(indexed(opcode, 2), {card.floats(five), card.ints({2, 5}), card.floats(five)}),
        {"index 5 is out of range for a table of 5 rows"}));
  }
}

TEST(what_is_gathered_or_scattered_stays_as_bad_as_it_was) {
  CheckedCard card;
  const auto target = card.floats({});
  CHECK_EQ(card.launch(indexed(Opcode::gather, 3),
                       {card.floats({1, 2, 3}), card.ints({0, 4, 1}), target}),
           "");
  CHECK_EQ(card.download(target, 1), "");
  CHECK(mentions(card.download(target, 3), {"bytes [4, 8)"}));
  CheckedCard other;
  const auto table = other.floats({1, 2, 3, 4, 5});
  CHECK_EQ(
      other.launch(indexed(Opcode::scatter, 2), {other.floats({1}), other.ints({3, 1}), table}),
      "");
  CHECK(mentions(other.download(table, 5), {"bytes [4, 8)"}));
}

TEST(what_is_accumulated_must_be_written_on_both_sides) {
  CheckedCard card;
  const auto indices = card.ints({3, 1});
  CHECK(mentions(card.launch(indexed(Opcode::scatter_add, 2),
                             {card.floats({1}), indices, card.floats({1, 2, 3, 4, 5})}),
                 {"accumulated by a scatter", "input 0", "bytes [4, 8)"}));
  CheckedCard other;
  CHECK(mentions(other.launch(indexed(Opcode::scatter_add, 2),
                              {other.floats({1, 2}), other.ints({1, 3}), other.floats({1, 2})}),
                 {"accumulated by a scatter", "the result", "bytes [12, 16)"}));
}

TEST(what_is_sorted_or_scanned_must_be_written) {
  const std::pair<Opcode, StepKind> kSteps[] = {{Opcode::argsort, StepKind::Argsort},
                                                {Opcode::cumsum, StepKind::Scan},
                                                {Opcode::cummax_index, StepKind::Scan}};
  for (const auto& [opcode, kind] : kSteps) {
    CheckedCard card;
    CHECK_EQ(card.launch(row(opcode, kind, 4), {card.floats({4, 2, 3, 1}), card.floats({})}), "");
    CHECK(mentions(
        card.launch(row(opcode, kind, 4), {card.floats({4, 2, 3}), card.floats({})}),
        {kind == StepKind::Argsort ? "is sorted" : "is part of a scan", "bytes [12, 16)"}));
  }
}

TEST(the_first_number_that_is_not_finite_is_found) {
  const std::vector<float> large(5, 3e38F);
  CheckedCard scatters(CheckMode::NonFinite);
  CHECK(mentions(scatters.launch(indexed(Opcode::scatter_add, 2),
                                 {scatters.floats(large), scatters.ints({3, 1}),
                                  scatters.floats({0, 3e38F, 0, 0, 0})}),
                 {"the first inf", "bytes [4, 8)"}));
  CheckedCard scans(CheckMode::NonFinite);
  CHECK(mentions(
      scans.launch(row(Opcode::cumsum, StepKind::Scan, 3), {scans.floats(large), scans.floats({})}),
      {"the first inf", "bytes [4, 8)"}));
  CheckedCard known(CheckMode::NonFinite);
  CHECK_EQ(known.launch(row(Opcode::cumsum, StepKind::Scan, 2),
                        {known.floats({INFINITY, 1}), known.floats({})}),
           "");
}
