// The number formats of the card, and those of the host that DMA converts from and to.
//
// Everything above this file (torch's dtypes, layouts, the compiler) names a format by its
// `DataFormat`; the integer values are part of the artifact format and never change.
#pragma once

#include <cstdint>
#include <string_view>

namespace spyre {

inline constexpr int kStickBytes = 128;

enum class DataFormat : uint8_t {
  SEN169_FP16 = 0,
  IEEE_FP32 = 1,
  INVALID = 2,
  SEN143_FP8 = 3,
  SEN152_FP8 = 4,
  SEN153_FP9 = 5,
  SENINT2 = 6,
  SENINT4 = 7,
  SENINT8 = 8,
  SENINT16 = 9,
  SENINT24 = 10,
  IEEE_INT64 = 11,
  IEEE_INT32 = 12,
  SENUINT32 = 13,
  SENUINT2 = 14,
  IEEE_FP16 = 15,
  BOOL = 16,
  BFLOAT16 = 17,
  SEN18F_FP24 = 18,
};
inline constexpr int kDataFormats = 19;

// What the units compute in once an element has been widened.
enum class Domain : uint8_t { None, Float, Int };

struct FormatInfo {
  std::string_view name;
  uint8_t bits;        // of one element in memory, the container included
  Domain domain;       // float formats widen to fp32, integer formats to int32
  bool is_computable;  // steps may read and write it (the others only exist in layouts)
};

// The row for a format; `INVALID`'s row for a value outside the enumeration.
const FormatInfo& format_info(DataFormat format);
bool is_valid_format(uint8_t value);

inline int elems_per_stick(DataFormat format) {
  const int bits = format_info(format).bits;
  return bits == 0 ? 0 : kStickBytes * 8 / bits;
}

// Bytes of one element; 0 for the packed formats of less than a byte.
inline int element_bytes(DataFormat format) { return format_info(format).bits / 8; }

// Host side of a DMA transfer: the element types of host tensors.
enum class HostFormat : uint8_t {
  Float32 = 0,
  Float16 = 1,
  BFloat16 = 2,
  Float8E4M3 = 3,
  Float8E5M2 = 4,
  Int8 = 5,
  Int16 = 6,
  Int32 = 7,
  Int64 = 8,
  UInt8 = 9,
  Bool = 10,
};
inline constexpr int kHostFormats = 11;

std::string_view host_format_name(HostFormat format);
int host_element_bytes(HostFormat format);
bool can_convert(HostFormat host, DataFormat device);

// One value at a time, for tests, constants and sub-byte formats. `encode` rounds as the
// arithmetic units do; `encode_saturating` as DMA and constants do (finite values stay finite).
float decode_float(DataFormat format, uint32_t bits);
int32_t decode_int(DataFormat format, uint32_t bits);
uint32_t encode_float(DataFormat format, float value);
uint32_t encode_float_saturating(DataFormat format, float value);
uint32_t encode_int(DataFormat format, int32_t value);

}  // namespace spyre
