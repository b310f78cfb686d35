#include "formats.h"

#include <array>
#include <stdexcept>
#include <string>

namespace spyre {
namespace {

#include "kernels/codec.inl"

constexpr std::array<FormatInfo, kDataFormats> kFormats{{
    {"SEN169_FP16", 16, Domain::Float, true}, {"IEEE_FP32", 32, Domain::Float, true},
    {"INVALID", 0, Domain::None, false},      {"SEN143_FP8", 8, Domain::Float, true},
    {"SEN152_FP8", 8, Domain::Float, true},   {"SEN153_FP9", 16, Domain::Float, true},
    {"SENINT2", 2, Domain::Int, false},       {"SENINT4", 4, Domain::Int, false},
    {"SENINT8", 8, Domain::Int, true},        {"SENINT16", 16, Domain::Int, true},
    {"SENINT24", 32, Domain::Int, true},      {"IEEE_INT64", 64, Domain::Int, false},
    {"IEEE_INT32", 32, Domain::Int, true},    {"SENUINT32", 32, Domain::Int, true},
    {"SENUINT2", 2, Domain::Int, false},      {"IEEE_FP16", 16, Domain::Float, true},
    {"BOOL", 8, Domain::Float, true},         {"BFLOAT16", 16, Domain::Float, true},
    {"SEN18F_FP24", 32, Domain::Float, true},
}};

struct HostInfo {
  std::string_view name;
  int bytes;
};
constexpr std::array<HostInfo, kHostFormats> kHosts{{
    {"float32", 4},
    {"float16", 2},
    {"bfloat16", 2},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"bool", 1},
}};

const HostInfo& host_info(HostFormat format) {
  const auto value = static_cast<size_t>(format);
  if (value >= kHosts.size()) {
    throw std::invalid_argument("no such host format: " + std::to_string(value));
  }
  return kHosts[value];
}

[[noreturn]] void not_of_domain(DataFormat format, const char* wanted) {
  throw std::invalid_argument(std::string(format_info(format).name) + " holds no " + wanted +
                              " of at most 32 bits");
}

// Calls `use` with the codec of a float format.
template <typename Use>
auto with_float_codec(DataFormat format, Use use) {
  switch (format) {
    case DataFormat::SEN169_FP16:
      return use(Sen169{});
    case DataFormat::IEEE_FP32:
      return use(Fp32{});
    case DataFormat::SEN143_FP8:
      return use(Sen143{});
    case DataFormat::SEN152_FP8:
      return use(Sen152{});
    case DataFormat::SEN153_FP9:
      return use(Sen153{});
    case DataFormat::IEEE_FP16:
      return use(Fp16{});
    case DataFormat::BOOL:
      return use(Bool{});
    case DataFormat::BFLOAT16:
      return use(Bf16{});
    case DataFormat::SEN18F_FP24:
      return use(Sen18f{});
    default:
      not_of_domain(format, "float");
  }
}

// How many low bits of a word an integer format keeps.
int integer_bits(DataFormat format) {
  if (format == DataFormat::SENINT24) return 24;
  const FormatInfo& info = format_info(format);
  if (info.domain != Domain::Int || info.bits > 32) not_of_domain(format, "integer");
  return info.bits;
}

bool is_unsigned(DataFormat format) {
  return format == DataFormat::SENUINT2 || format == DataFormat::SENUINT32;
}

}  // namespace

const FormatInfo& format_info(DataFormat format) {
  const auto value = static_cast<uint8_t>(format);
  return kFormats[is_valid_format(value) ? value : static_cast<uint8_t>(DataFormat::INVALID)];
}

bool is_valid_format(uint8_t value) {
  return value < kDataFormats && value != static_cast<uint8_t>(DataFormat::INVALID);
}

std::string_view host_format_name(HostFormat format) { return host_info(format).name; }

int host_element_bytes(HostFormat format) { return host_info(format).bytes; }

bool can_convert(HostFormat host, DataFormat device) {
  switch (host) {
    case HostFormat::Float32:
    case HostFormat::Float16:
    case HostFormat::BFloat16:
      return device == DataFormat::SEN169_FP16 || device == DataFormat::IEEE_FP32 ||
             device == DataFormat::IEEE_FP16 || device == DataFormat::BFLOAT16 ||
             device == DataFormat::SEN143_FP8 || device == DataFormat::SEN152_FP8;
    case HostFormat::Float8E4M3:
      return device == DataFormat::SEN143_FP8;
    case HostFormat::Float8E5M2:
      return device == DataFormat::SEN152_FP8;
    case HostFormat::Int8:
      return device == DataFormat::SENINT8;
    case HostFormat::Int16:
      return device == DataFormat::SENINT16;
    case HostFormat::Int32:
      return device == DataFormat::IEEE_INT32;
    case HostFormat::Int64:
      return device == DataFormat::IEEE_INT32 || device == DataFormat::IEEE_INT64;
    case HostFormat::UInt8:
      return device == DataFormat::SENUINT32;
    case HostFormat::Bool:
      return device == DataFormat::SEN169_FP16 || device == DataFormat::BOOL;
  }
  return false;
}

float decode_float(DataFormat format, uint32_t bits) {
  return with_float_codec(format, [bits](auto codec) {
    using Stored = typename decltype(codec)::Stored;
    return bits_as<float>(codec.widen(static_cast<Stored>(bits)));
  });
}

uint32_t encode_float(DataFormat format, float value) {
  return with_float_codec(
      format, [value](auto codec) -> uint32_t { return codec.narrow(bits_as<uint32_t>(value)); });
}

uint32_t encode_float_saturating(DataFormat format, float value) {
  return with_float_codec(format, [value](auto codec) -> uint32_t {
    return codec.narrow_saturating(bits_as<uint32_t>(value));
  });
}

int32_t decode_int(DataFormat format, uint32_t bits) {
  const int unused = 32 - integer_bits(format);
  const uint32_t top = bits << unused;
  return is_unsigned(format) ? static_cast<int32_t>(top >> unused)
                             : static_cast<int32_t>(top) >> unused;
}

uint32_t encode_int(DataFormat format, int32_t value) {
  const int bits = integer_bits(format);
  // SENINT24 fills its container with the sign, the others have none to fill.
  if (format == DataFormat::SENINT24) return Int24::narrow(static_cast<uint32_t>(value));
  return static_cast<uint32_t>(value) & (0xFFFFFFFFu >> (32 - bits));
}

}  // namespace spyre
