// The vector code against the scalar codecs, and against itself in the other versions.
#include "../../torch_spyre/csrc/card/kernels.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "../../torch_spyre/csrc/card/lookup.h"
#include "check.h"
#include "operands.h"

using namespace spyre;
using namespace spyre::kernels;

namespace {

const std::vector<Isa> kIsas{Isa::Baseline, Isa::V3, Isa::V4};

}  // namespace

TEST(the_environment_chooses_the_version_and_a_bad_value_is_explained) {
  // Must come first: the choice is made once.
  setenv("SPYRE_CARD_ISA", "avx9", 1);
  const std::string message = MESSAGE_OF(std::invalid_argument, table());
  for (const char* part : {"SPYRE_CARD_ISA", "avx9", "v4", "v3", "baseline"}) {
    CHECK(message.find(part) != std::string::npos);
  }
  setenv("SPYRE_CARD_ISA", "baseline", 1);
  CHECK_EQ(std::string(table().isa), "baseline");
  for (const Isa isa : kIsas) {
    if (isa_available(isa)) select_isa(isa);
  }
}

TEST(tables_are_complete) {
  for (int i = 0; i < kOpcodes; ++i) {
    const OpcodeGroup group = opcode_group(static_cast<uint16_t>(i));
    const auto place = static_cast<size_t>(i);
    CHECK_EQ(table().pointwise[place] != nullptr, group == OpcodeGroup::Pointwise);
    if (group != OpcodeGroup::Reduction) continue;
    CHECK(place - kFirstReduction < kReductions);
    const Reduction& reduction = table().reduction[place - kFirstReduction];
    CHECK(reduction.words != nullptr && reduction.combine_lanes != nullptr);
    CHECK(reduction.finish != nullptr);
  }
  for (size_t i = 0; i < kDataFormats; ++i) {
    const bool computes = format_info(static_cast<DataFormat>(i)).is_computable;
    CHECK_EQ(table().load[i] != nullptr, computes);
    CHECK_EQ(table().store[i] != nullptr, computes);
    for (size_t h = 0; h < kHostFormats; ++h) {
      const bool converts = can_convert(static_cast<HostFormat>(h), static_cast<DataFormat>(i));
      CHECK_EQ(table().to_card[h][i] != nullptr, converts);
      CHECK_EQ(table().to_host[h][i] != nullptr, converts);
    }
  }
}

TEST(loads_and_stores_agree_with_the_scalar_codecs) {
  const Words words = operands_of(1, 60000, 1)[0];
  for (int value = 0; value < kDataFormats; ++value) {
    const auto format = static_cast<DataFormat>(value);
    const FormatInfo& info = format_info(format);
    if (!info.is_computable) continue;
    const auto bytes = static_cast<size_t>(element_bytes(format));
    const size_t count = bytes == 1 ? 256 : 65536;
    std::vector<std::byte> stored(count * bytes);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t pattern = bytes == 4 ? i * 65537u : i;
      std::memcpy(&stored[i * bytes], &pattern, bytes);
    }
    Words loaded(count);
    table().load[static_cast<size_t>(value)](stored.data(), loaded.data(),
                                             static_cast<int64_t>(count));
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t pattern = bytes == 4 ? i * 65537u : i;
      const Word wanted = info.domain == Domain::Int
                              ? static_cast<Word>(decode_int(format, pattern))
                              : as_word(decode_float(format, pattern));
      CHECK_EQ(loaded[i], wanted);
    }
    std::vector<std::byte> out(words.size() * bytes);
    table().store[static_cast<size_t>(value)](words.data(), out.data(),
                                              static_cast<int64_t>(words.size()));
    for (size_t i = 0; i < words.size(); ++i) {
      uint32_t got = 0;
      std::memcpy(&got, &out[i * bytes], bytes);
      const uint32_t wanted = info.domain == Domain::Int
                                  ? encode_int(format, static_cast<int32_t>(words[i]))
                                  : encode_float(format, as_float(words[i]));
      CHECK_EQ(got, wanted);
    }
  }
}

TEST(transfers_convert_all_16_bit_patterns_as_the_scalar_codecs_do) {
  struct Pair {
    HostFormat host;
    DataFormat same;  // the card format with the host's bits
  };
  std::vector<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  // In two orders: the fast way looks at pieces, and subnormals must not hide its errors.
  for (const bool is_mixed : {false, true}) {
    if (is_mixed) std::shuffle(patterns.begin(), patterns.end(), std::mt19937(2));
    for (const Pair& pair : {Pair{HostFormat::Float16, DataFormat::IEEE_FP16},
                             Pair{HostFormat::BFloat16, DataFormat::BFLOAT16}}) {
      const auto card = static_cast<size_t>(DataFormat::SEN169_FP16);
      const auto host = static_cast<size_t>(pair.host);
      std::vector<uint16_t> to(65536), back(65536);
      table().to_card[host][card](reinterpret_cast<const std::byte*>(patterns.data()),
                                  reinterpret_cast<std::byte*>(to.data()), 65536);
      table().to_host[host][card](reinterpret_cast<const std::byte*>(patterns.data()),
                                  reinterpret_cast<std::byte*>(back.data()), 65536);
      for (size_t i = 0; i < 65536; ++i) {
        const uint16_t p = patterns[i];
        CHECK_EQ(to[i],
                 encode_float_saturating(DataFormat::SEN169_FP16, decode_float(pair.same, p)));
        CHECK_EQ(back[i], encode_float(pair.same, decode_float(DataFormat::SEN169_FP16, p)));
      }
    }
  }
}

TEST(transfers_of_integers_and_bools) {
  const auto convert = [](Convert how, const auto& from, auto& to) {
    return how(reinterpret_cast<const std::byte*>(from.data()),
               reinterpret_cast<std::byte*>(to.data()), static_cast<int64_t>(from.size()));
  };
  const auto& to_card = table().to_card;
  const auto& to_host = table().to_host;
  const auto at = [](const auto& rows, HostFormat host, DataFormat device) {
    return rows[static_cast<size_t>(host)][static_cast<size_t>(device)];
  };

  const std::vector<int64_t> longs{0,          -1,          2147483647, -2147483648ll,
                                   2147483648, -2147483649, 1ll << 40,  5};
  std::vector<int32_t> words(longs.size());
  CHECK_EQ(convert(at(to_card, HostFormat::Int64, DataFormat::IEEE_INT32), longs, words), 3);
  CHECK_EQ(words[3], std::numeric_limits<int32_t>::min());
  std::vector<int64_t> back(longs.size());
  CHECK_EQ(convert(at(to_host, HostFormat::Int64, DataFormat::IEEE_INT32), words, back), 0);
  CHECK_EQ(back[1], -1);

  const std::vector<uint8_t> bytes{0, 1, 127, 128, 255};
  std::vector<uint32_t> wide(bytes.size());
  std::vector<uint8_t> narrow(bytes.size());
  convert(at(to_card, HostFormat::UInt8, DataFormat::SENUINT32), bytes, wide);
  CHECK_EQ(wide[4], 255u);
  wide[0] = 0x1234;
  convert(at(to_host, HostFormat::UInt8, DataFormat::SENUINT32), wide, narrow);
  CHECK_EQ(narrow[0], 0x34);

  const std::vector<uint8_t> bools{0, 1, 2};
  std::vector<uint16_t> halves(bools.size());
  convert(at(to_card, HostFormat::Bool, DataFormat::SEN169_FP16), bools, halves);
  CHECK(halves == (std::vector<uint16_t>{0, 0x3E00, 0x3E00}));
  const std::vector<uint16_t> values{0, 0x8000, 0x0001, 0x7FFF, 0xFFFF};
  std::vector<uint8_t> truths(values.size());
  convert(at(to_host, HostFormat::Bool, DataFormat::SEN169_FP16), values, truths);
  CHECK(truths == (std::vector<uint8_t>{0, 0, 1, 1, 1}));
}

TEST(all_versions_give_the_same_bits) {
  const Isa before = selected_isa();
  const std::vector<Words> operands = operands_of(4, 20001, 42);
  const auto* raw = reinterpret_cast<const std::byte*>(operands[0].data());
  const auto count = static_cast<int64_t>(operands[0].size()) / 2;
  std::vector<std::vector<std::vector<Word>>> results;
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    select_isa(isa);
    std::vector<std::vector<Word>> outputs;
    for (uint16_t i = 0; i < kOpcodes; ++i) {
      const auto inputs = static_cast<size_t>(opcode_info(i).inputs);
      outputs.push_back(
          opcode_group(i) != OpcodeGroup::Pointwise
              ? Words{}
              : run(static_cast<Opcode>(i),
                    {operands.begin(), operands.begin() + static_cast<long>(inputs)}));
    }
    const auto keep = [&](auto kernel) {
      Words out(static_cast<size_t>(count) * 2);
      if (kernel != nullptr) kernel(raw, reinterpret_cast<std::byte*>(out.data()), count);
      outputs.push_back(out);
    };
    for (size_t i = 0; i < kDataFormats; ++i) {
      Words loaded(static_cast<size_t>(count));
      if (table().load[i] != nullptr) table().load[i](raw, loaded.data(), count);
      outputs.push_back(loaded);
      Words stored(static_cast<size_t>(count));
      if (table().store[i] != nullptr) {
        table().store[i](operands[0].data(), reinterpret_cast<std::byte*>(stored.data()), count);
      }
      outputs.push_back(stored);
      for (size_t h = 0; h < kHostFormats; ++h) {
        if (static_cast<HostFormat>(h) == HostFormat::Int64) continue;  // needs 8-byte operands
        keep(table().to_card[h][i]);
        keep(table().to_host[h][i]);
      }
    }
    results.push_back(outputs);
  }
  for (const auto& result : results) {
    for (size_t k = 0; k < result.size(); ++k) {
      if (result[k] == results[0][k]) continue;
      check::fail(__FILE__, __LINE__,
                  "kernel " + std::to_string(k) + " (" +
                      std::string(opcode_info(static_cast<uint16_t>(k)).name) +
                      ") differs between versions");
    }
  }
  select_isa(before);
}

TEST(an_operation_may_replace_any_of_its_operands) {
  const std::vector<Words> operands = operands_of(4, 3001, 9);
  for (uint16_t i = 0; i < kOpcodes; ++i) {
    const auto inputs = static_cast<size_t>(opcode_info(i).inputs);
    if (opcode_group(i) != OpcodeGroup::Pointwise) continue;
    const Words wanted = run(static_cast<Opcode>(i),
                             {operands.begin(), operands.begin() + static_cast<long>(inputs)});
    for (size_t replaced = 0; replaced < inputs; ++replaced) {
      std::vector<Words> copies = operands;
      const std::vector<const Word*> in{copies[0].data(), copies[1].data(), copies[2].data(),
                                        copies[3].data()};
      table().pointwise[i](in.data(), copies[replaced].data(), static_cast<int64_t>(wanted.size()));
      CHECK(copies[replaced] == wanted);
    }
  }
}

// ---- Direct operations -------------------------------------------------------------------------

namespace {

constexpr size_t kHalfFormat = static_cast<size_t>(DataFormat::SEN169_FP16);
constexpr int64_t kStickLanes = kStickBytes / 2;

// An operand in each of the forms that a direct operation takes; `words` is what they stand for.
struct DirectOperand {
  DirectOperand(DirectInput::Kind kind, const Words& source, bool repeats) {
    const auto n = static_cast<int64_t>(source.size());
    const bool is_half = kind == DirectInput::Kind::Stick || kind == DirectInput::Kind::FirstHalf;
    const bool is_first = kind >= DirectInput::Kind::FirstWord;
    words = source;
    if (is_half) table().round[kHalfFormat](words.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t lane = is_first ? 0 : i % kStickLanes;
      words[i] = words[(repeats ? 0 : i - i % kStickLanes) + lane];
    }
    bytes.resize(source.size() * sizeof(Word));
    if (is_half) {
      table().store[kHalfFormat](words.data(), bytes.data(), n);
    } else {
      std::memcpy(bytes.data(), words.data(), bytes.size());
    }
    const int64_t stride = kStickLanes * (is_half ? 2 : 4);
    input = {kind, bytes.data(), repeats ? 0 : stride};
  }

  Words words;
  std::vector<std::byte> bytes;
  DirectInput input{};
};

struct DirectResult {
  Words words;
  std::vector<std::byte> stored;
  bool operator==(const DirectResult&) const = default;
};

DirectResult load_compute_store(Opcode opcode, const Words& x, const Words& y) {
  DirectResult result{run(opcode, {x, y}), std::vector<std::byte>(x.size() * 2)};
  const auto n = static_cast<int64_t>(x.size());
  table().store[kHalfFormat](result.words.data(), result.stored.data(), n);
  table().round[kHalfFormat](result.words.data(), n);
  return result;
}

}  // namespace

TEST(direct_operations_give_the_bits_of_loading_computing_and_storing) {
  using Kind = DirectInput::Kind;
  std::vector<Words> operands = operands_of(2, 40000, 5);
  // Results at the edges of SEN169: about to become zero, the smallest number, or the symbol.
  for (const float scale : {0x1p-33f, 0x1p-32f, 0x1p-31f, 0x1p-30f, 0x1.ffp32f, 0x1.fep32f}) {
    for (int i = 0; i < 64; ++i) {
      operands[0].push_back(as_word(scale));
      operands[1].push_back(as_word((i % 2 == 0 ? 1.0f : -1.0f) * (0.9f + 0.005f * i)));
    }
  }
  for (Words& words : operands) words.resize(words.size() / kStickLanes * kStickLanes);
  const auto count = static_cast<int64_t>(operands[0].size()) / kStickLanes;
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    select_isa(isa);
    for (const Opcode opcode :
         {Opcode::add, Opcode::sub, Opcode::mul, Opcode::div, Opcode::maximum, Opcode::minimum}) {
      const Direct direct = table().direct[static_cast<size_t>(opcode)];
      CHECK_EQ(direct != nullptr, isa != Isa::Baseline);
      if (direct == nullptr) continue;
      for (int variant = 0; variant < 32; ++variant) {
        const DirectOperand x(static_cast<Kind>(variant & 3), operands[0], false);
        const DirectOperand y(static_cast<Kind>(variant >> 2 & 3), operands[1], variant >= 16);
        const DirectResult expected = load_compute_store(opcode, x.words, y.words);
        DirectResult both{Words(x.words.size()), std::vector<std::byte>(x.words.size() * 2)};
        DirectResult apart = both;
        direct({{x.input, y.input}, count, both.words.data(), both.stored.data(), 128, false});
        direct({{x.input, y.input}, count, apart.words.data(), nullptr, 0, false});
        direct({{x.input, y.input}, count, nullptr, apart.stored.data(), 128, false});
        CHECK(both == expected);
        CHECK(apart == expected);
        // Past the caches, where it is aligned and where it is not.
        for (const size_t shift : {size_t{0}, size_t{2}}) {
          std::vector<std::byte> room(expected.stored.size() + 130);
          std::byte* const to =
              room.data() + shift + (128 - reinterpret_cast<uintptr_t>(room.data()) % 128) % 128;
          direct({{x.input, y.input}, count, nullptr, to, 128, true});
          table().fence();
          CHECK(std::equal(expected.stored.begin(), expected.stored.end(), to));
        }
      }
      // The result takes the place of an operand.
      DirectOperand x(Kind::Stick, operands[0], false);
      const DirectOperand y(Kind::FirstHalf, operands[1], false);
      const DirectResult expected = load_compute_store(opcode, x.words, y.words);
      direct({{x.input, y.input}, count, nullptr, x.bytes.data(), 128, false});
      CHECK(std::equal(expected.stored.begin(), expected.stored.end(), x.bytes.begin()));
    }
  }
}

// Every operand there is, NaN and infinity among them.
TEST(tables_of_results_give_the_bits_of_loading_computing_and_storing) {
  using Kind = DirectInput::Kind;
  std::vector<uint16_t> codes(1 << 16);
  std::iota(codes.begin(), codes.end(), uint16_t{0});
  Words all(codes.size());
  table().load[kHalfFormat](reinterpret_cast<const std::byte*>(codes.data()), all.data(),
                            static_cast<int64_t>(all.size()));
  const auto count = static_cast<int64_t>(all.size()) / kStickLanes;
  int tables = 0;
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    select_isa(isa);
    for (int i = 0; i < kOpcodes; ++i) {
      const auto opcode = static_cast<Opcode>(i);
      const uint16_t* const results = results_of(opcode);
      if (results == nullptr) continue;
      ++tables;
      for (const Kind kind : {Kind::Stick, Kind::Words, Kind::FirstHalf}) {
        DirectOperand x(kind, all, false);
        const DirectResult expected = load_compute_store(opcode, x.words, x.words);
        DirectResult both{Words(all.size()), std::vector<std::byte>(all.size() * 2)};
        DirectResult apart = both;
        look_up(results, {{x.input}, count, both.words.data(), both.stored.data(), 128, false});
        look_up(results, {{x.input}, count, apart.words.data(), nullptr, 0, false});
        look_up(results, {{x.input}, count, nullptr, apart.stored.data(), 128, false});
        CHECK(both == expected);
        CHECK(apart == expected);
        if (kind != Kind::Stick) continue;
        // The result takes the place of the operand.
        look_up(results, {{x.input}, count, nullptr, x.bytes.data(), 128, false});
        CHECK(std::equal(expected.stored.begin(), expected.stored.end(), x.bytes.begin()));
      }
    }
  }
  CHECK(tables > 0);
}
