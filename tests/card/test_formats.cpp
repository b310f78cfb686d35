// The number formats against references that share nothing with them: a format is described by
// the list of its values, and rounding is a search for the nearest one.
#include "../../torch_spyre/csrc/card/formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "../../torch_spyre/csrc/card/opcodes.h"
#include "check.h"

using namespace spyre;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A finite magnitude of a format and its code.
struct Entry {
  double value;
  uint32_t code;
};

// What a format is, in the words of its specification.
struct Spec {
  DataFormat format;
  int exponent_bits, fraction_bits, bias;
  bool has_subnormals;
  uint32_t largest;   // code of the largest finite magnitude
  uint32_t overflow;  // code that a larger magnitude becomes
  bool ties_away;

  std::vector<Entry> values() const {
    std::vector<Entry> entries;
    for (uint32_t code = 0; code <= largest; ++code) entries.push_back({value(code), code});
    return entries;
  }
  double value(uint32_t code) const {
    if (code == 0) return 0;
    const int exponent = static_cast<int>(code >> fraction_bits);
    const double fraction = std::ldexp(code & ((1u << fraction_bits) - 1), -fraction_bits);
    if (exponent == 0 && has_subnormals) return std::ldexp(fraction, 1 - bias);
    return std::ldexp(1 + fraction, exponent - bias);
  }
  uint32_t sign() const { return 1u << (exponent_bits + fraction_bits); }
};

const Spec kSen169{DataFormat::SEN169_FP16, 6, 9, 31, false, 0x7FFE, 0x7FFF, true};
const Spec kFp16{DataFormat::IEEE_FP16, 5, 10, 15, true, 0x7BFF, 0x7C00, false};
const Spec kE4m3{DataFormat::SEN143_FP8, 4, 3, 7, true, 0x7E, 0x7F, false};
const Spec kE5m2{DataFormat::SEN152_FP8, 5, 2, 15, true, 0x7B, 0x7C, false};
const Spec kFp9{DataFormat::SEN153_FP9, 5, 3, 15, true, 0xF7, 0xF8, false};
const Spec kBf16{DataFormat::BFLOAT16, 8, 7, 127, true, 0x7F7F, 0x7F80, false};

// The nearest code to a finite magnitude. Beyond the largest value the grid goes on, to decide
// between the largest and overflow.
uint32_t nearest(const Spec& spec, const std::vector<Entry>& values, double magnitude) {
  const auto above =
      std::lower_bound(values.begin(), values.end(), magnitude,
                       [](const Entry& entry, double wanted) { return entry.value < wanted; });
  if (above != values.end() && above->value == magnitude) return above->code;
  if (magnitude > spec.value(spec.largest + 1)) return spec.overflow;
  const Entry high =
      above != values.end() ? *above : Entry{spec.value(spec.largest + 1), spec.overflow};
  const Entry low = *(above - 1);
  if (low.code == 0 && !spec.has_subnormals) {  // the published rule at the bottom
    return magnitude < high.value / 2 ? 0 : high.code;
  }
  const double to_low = magnitude - low.value;
  const double to_high = high.value - magnitude;
  if (to_low != to_high) return to_low < to_high ? low.code : high.code;
  // Codes of neighbours differ by one, overflow's stands for largest + 1.
  return spec.ties_away || low.code % 2 == 1 ? high.code : low.code;
}

float as_float(uint32_t word) { return std::bit_cast<float>(word); }

// Floats at, next to and half-way between the values of a format, and a sample of all floats.
std::vector<float> interesting(const Spec& spec, const std::vector<Entry>& values) {
  std::vector<float> floats{0.0f, 1e-45f, 1.17549435e-38f, 3.4028235e38f, 1e10f, 8.6e9f, 1e-12f};
  for (size_t i = 0; i < values.size(); ++i) {
    const double here = values[i].value;
    const double next = i + 1 < values.size() ? values[i + 1].value : spec.value(spec.largest + 1);
    for (const double value : {here, (here + next) / 2, here / 2}) {
      const auto f = static_cast<float>(value);
      floats.push_back(f);
      floats.push_back(std::nextafter(f, 0.0f));
      floats.push_back(std::nextafter(f, std::numeric_limits<float>::infinity()));
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const float f = as_float(static_cast<uint32_t>(random()) & 0x7FFFFFFFu);
    if (std::isfinite(f)) floats.push_back(f);
  }
  std::erase_if(floats, [](float f) { return !std::isfinite(f); });
  return floats;
}

void check_decoding(const Spec& spec) {
  for (const Entry& entry : spec.values()) {
    const float plus = decode_float(spec.format, entry.code);
    const float minus = decode_float(spec.format, entry.code | spec.sign());
    CHECK_EQ(static_cast<double>(plus), entry.value);
    CHECK_EQ(static_cast<double>(minus), -entry.value);
    CHECK(!std::signbit(plus) && std::signbit(minus));
  }
}

void check_encoding(const Spec& spec) {
  const std::vector<Entry> values = spec.values();
  for (const float f : interesting(spec, values)) {
    const uint32_t wanted = nearest(spec, values, f);
    const uint32_t saturated = wanted == spec.overflow ? spec.largest : wanted;
    CHECK_EQ(encode_float(spec.format, f), wanted);
    CHECK_EQ(encode_float(spec.format, -f), wanted | spec.sign());
    CHECK_EQ(encode_float_saturating(spec.format, f), saturated);
    CHECK_EQ(encode_float_saturating(spec.format, -f), saturated | spec.sign());
  }
}

}  // namespace

TEST(all_65536_patterns_of_sen169_decode_to_the_published_values) {
  check_decoding(kSen169);
  CHECK_EQ(decode_float(DataFormat::SEN169_FP16, 0x7FFE), 8573157376.0f);
  CHECK_EQ(decode_float(DataFormat::SEN169_FP16, 0x0001), std::ldexp(513.0f, -40));
  CHECK(std::isnan(decode_float(DataFormat::SEN169_FP16, 0x7FFF)));
  CHECK_EQ(decode_float(DataFormat::SEN169_FP16, 0xFFFF), -kInf);
}

TEST(sen169_rounds_to_nearest_with_ties_away_from_zero) { check_encoding(kSen169); }

TEST(sen169_symbols) {
  const auto encode = [](float f) { return encode_float(DataFormat::SEN169_FP16, f); };
  const auto dma = [](float f) { return encode_float_saturating(DataFormat::SEN169_FP16, f); };
  const auto inf = std::numeric_limits<float>::infinity();
  for (const auto& via : {+encode, +dma}) {
    CHECK_EQ(via(inf), 0x7FFFu);
    CHECK_EQ(via(-inf), 0xFFFFu);
    CHECK_EQ(via(as_float(0x7FC00000)), 0x7FFFu);
    CHECK_EQ(via(as_float(0xFFC00001)), 0x7FFFu);
    CHECK_EQ(via(-0.0f), 0x8000u);
  }
  CHECK_EQ(encode(1e20f), 0x7FFFu);
  CHECK_EQ(encode(-1e20f), 0xFFFFu);
  CHECK_EQ(dma(-3.3895314e38f), 0xFFFEu);  // bfloat16's finfo.min, as masks use it
}

TEST(every_value_survives_a_round_trip) {
  for (const Spec& spec : {kSen169, kFp16, kE4m3, kE5m2, kFp9, kBf16}) {
    for (uint32_t code = 0; code < 2 * spec.sign(); ++code) {
      const float f = decode_float(spec.format, code);
      if (!std::isnan(f)) CHECK_EQ(encode_float(spec.format, f), code);
    }
  }
}

TEST(ieee_fp16_bfloat16_and_fp9_are_exact_and_round_to_even) {
  for (const Spec& spec : {kFp16, kFp9, kBf16}) {
    check_decoding(spec);
    check_encoding(spec);
    const uint32_t inf = spec.overflow;
    CHECK_EQ(decode_float(spec.format, inf), kInf);
    CHECK_EQ(decode_float(spec.format, inf | spec.sign()), -kInf);
    for (uint32_t code = inf + 1; code < spec.sign(); ++code) {
      CHECK(std::isnan(decode_float(spec.format, code)));
      CHECK(std::isnan(decode_float(spec.format, code | spec.sign())));
    }
    CHECK_EQ(encode_float_saturating(spec.format, static_cast<float>(kInf)), inf);
    CHECK(encode_float(spec.format, as_float(0x7FC00000)) > inf);
  }
}

TEST(fp8_formats_have_torch_float8_values_and_rounding) {
  check_decoding(kE4m3);
  check_encoding(kE4m3);
  check_decoding(kE5m2);
  check_encoding(kE5m2);
  CHECK(std::isnan(decode_float(DataFormat::SEN143_FP8, 0x7F)));
  CHECK(std::isnan(decode_float(DataFormat::SEN143_FP8, 0xFF)));
  CHECK_EQ(encode_float(DataFormat::SEN143_FP8, static_cast<float>(-kInf)), 0xFFu);
  CHECK_EQ(encode_float(DataFormat::SEN152_FP8, static_cast<float>(-kInf)), 0xFCu);
  CHECK_EQ(encode_float(DataFormat::SEN152_FP8, as_float(0x7FC00000)), 0x7Fu);
}

TEST(fp24_is_fp32_rounded_to_15_fraction_bits) {
  std::mt19937 random(3);
  for (int i = 0; i < 200000; ++i) {
    const float f = as_float(static_cast<uint32_t>(random()));
    if (!std::isfinite(f) || std::abs(f) < 1e-37f) continue;
    const double unit = std::ldexp(1.0, std::ilogb(f) - 15);
    const double rounded = std::nearbyint(f / unit) * unit;
    const float back =
        decode_float(DataFormat::SEN18F_FP24, encode_float(DataFormat::SEN18F_FP24, f));
    CHECK_EQ(static_cast<double>(back),
             std::abs(rounded) < std::ldexp(1.0, 128) ? rounded : std::copysign(kInf, rounded));
  }
}

TEST(integers_wrap_and_extend_their_sign) {
  struct Case {
    DataFormat format;
    int bits;
    bool is_signed;
  };
  for (const Case& c : {Case{DataFormat::SENINT2, 2, true}, Case{DataFormat::SENUINT2, 2, false},
                        Case{DataFormat::SENINT4, 4, true}, Case{DataFormat::SENINT8, 8, true},
                        Case{DataFormat::SENINT16, 16, true}, Case{DataFormat::SENINT24, 24, true},
                        Case{DataFormat::IEEE_INT32, 32, true}}) {
    const int64_t modulus = int64_t{1} << c.bits;
    for (const int64_t value : {0, 1, 2, 3, 7, 8, -1, -8, 127, 128, -129, 40000, 8388608, -8388609,
                                2147483647, -2147483647}) {
      int64_t wanted = ((value % modulus) + modulus) % modulus;
      if (c.is_signed && wanted >= modulus / 2) wanted -= modulus;
      const uint32_t stored = encode_int(c.format, static_cast<int32_t>(value));
      CHECK_EQ(int64_t{decode_int(c.format, stored)}, wanted);
    }
  }
  CHECK_EQ(decode_int(DataFormat::SENUINT32, 0xFFFFFFFFu), -1);
}

TEST(a_format_of_the_wrong_domain_is_refused_by_name) {
  CHECK(MESSAGE_OF(std::invalid_argument, decode_float(DataFormat::SENINT8, 0)).find("SENINT8") !=
        std::string::npos);
  CHECK(
      MESSAGE_OF(std::invalid_argument, decode_int(DataFormat::IEEE_INT64, 0)).find("IEEE_INT64") !=
      std::string::npos);
  CHECK(!MESSAGE_OF(std::invalid_argument, encode_int(DataFormat::SEN169_FP16, 0)).empty());
}

TEST(sticks_hold_128_bytes_of_every_format) {
  CHECK_EQ(elems_per_stick(DataFormat::SEN169_FP16), 64);
  CHECK_EQ(elems_per_stick(DataFormat::IEEE_FP32), 32);
  CHECK_EQ(elems_per_stick(DataFormat::SENINT4), 256);
  CHECK_EQ(elems_per_stick(DataFormat::SENUINT32), 32);
  CHECK_EQ(elems_per_stick(DataFormat::INVALID), 0);
  CHECK_EQ(format_info(static_cast<DataFormat>(200)).name, "INVALID");
  CHECK(!is_valid_format(2) && !is_valid_format(19) && is_valid_format(18));
}

TEST(opcodes_name_their_operands) {
  CHECK_EQ(opcode_info(64).name, "add");
  CHECK_EQ(opcode_info(64).inputs, 2);
  CHECK_EQ(opcode_info(105).inputs, 4);
  CHECK(opcode_info(0).name.empty() && opcode_info(255).name.empty());
  CHECK(opcode_info(60000).name.empty());
}
