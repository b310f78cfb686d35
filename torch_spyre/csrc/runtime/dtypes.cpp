#include "runtime/dtypes.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <optional>

#include "runtime/env.h"

namespace spyre {
namespace {

struct Row {
  DataFormat device;
  HostFormat host;
};

std::optional<Row> row_of(c10::ScalarType dtype) noexcept {
  using T = c10::ScalarType;
  switch (dtype) {
    case T::Half:
      return Row{DataFormat::SEN169_FP16, HostFormat::Float16};
    case T::BFloat16:
      return Row{DataFormat::SEN169_FP16, HostFormat::BFloat16};
    case T::Bool:
      return Row{DataFormat::SEN169_FP16, HostFormat::Bool};
    case T::Float:
      return Row{DataFormat::IEEE_FP32, HostFormat::Float32};
    case T::Float8_e4m3fn:
      return Row{DataFormat::SEN143_FP8, HostFormat::Float8E4M3};
    case T::Float8_e5m2:
      return Row{DataFormat::SEN152_FP8, HostFormat::Float8E5M2};
    case T::Char:
      return Row{DataFormat::SENINT8, HostFormat::Int8};
    case T::Short:
      return Row{DataFormat::SENINT16, HostFormat::Int16};
    case T::Int:
      return Row{DataFormat::IEEE_INT32, HostFormat::Int32};
    case T::Long:
      return Row{DataFormat::IEEE_INT32, HostFormat::Int64};
    case T::Byte:
      return Row{DataFormat::SENUINT32, HostFormat::UInt8};
    default:
      return std::nullopt;
  }
}

Row checked_row(c10::ScalarType dtype) {
  const auto row = row_of(dtype);
  if (!row) {
    const char* advice = dtype == c10::ScalarType::Double ? "; use torch.float32 instead"
                                                          : "; convert it on the CPU first";
    C10_THROW_ERROR(
        TypeError,
        "Cannot put a torch." + std::string(c10::getDtypeNames(dtype).first) +
            " tensor on a spyre device: the card has no such number format. It holds float32, "
            "float16, bfloat16, float8_e4m3fn, float8_e5m2, bool, int8, int16, int32, int64 (as "
            "int32) and uint8" +
            advice);
  }
  return *row;
}

// -1: as the environment says; else what set_downcast_warning said.
std::atomic<int> warning_switch{-1};
std::atomic<bool> has_warned{false};

}  // namespace

DataFormat device_format(c10::ScalarType dtype) { return checked_row(dtype).device; }
bool has_device_format(c10::ScalarType dtype) noexcept { return row_of(dtype).has_value(); }
HostFormat host_format(c10::ScalarType dtype) { return checked_row(dtype).host; }

void warn_about_downcast(c10::ScalarType dtype) {
  if (dtype != c10::ScalarType::Long || !downcast_warning() || has_warned.exchange(true)) {
    return;
  }
  TORCH_WARN(
      "int64 tensors are held as 32-bit integers on a spyre device; values outside 32 bits raise "
      "OverflowError when they are copied there, and arithmetic wraps at 32 bits. "
      "TORCH_SPYRE_DOWNCAST_WARN=0 or torch.spyre.set_downcast_warning(False) silences this");
}

bool downcast_warning() {
  const int state = warning_switch;
  return state < 0 ? environment().downcast_warning : state == 1;
}

void set_downcast_warning(bool on) {
  warning_switch = on ? 1 : 0;
  if (on) {
    has_warned = false;
  }
}

}  // namespace spyre
