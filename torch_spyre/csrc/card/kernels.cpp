#include "kernels.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/versions.h"

namespace spyre::kernels {
namespace {

constexpr const char* kVariable = "SPYRE_CARD_ISA";

const Table& table_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::V4) return v4::kTable;
  if (isa == Isa::V3) return v3::kTable;
#endif
  (void)isa;
  return baseline::kTable;
}

Isa best_isa() {
  if (isa_available(Isa::V4)) return Isa::V4;
  return isa_available(Isa::V3) ? Isa::V3 : Isa::Baseline;
}

// The version that the environment asks for, or the best one.
Isa initial_isa() {
  const char* wanted = std::getenv(kVariable);
  if (wanted == nullptr || *wanted == '\0') return best_isa();
  for (const Isa isa : {Isa::V4, Isa::V3, Isa::Baseline}) {
    const std::string_view name = isa == Isa::V4 ? "v4" : isa == Isa::V3 ? "v3" : "baseline";
    if (name != wanted) continue;
    if (isa_available(isa)) return isa;
    throw std::invalid_argument(std::string(kVariable) + "=" + wanted +
                                ": this host can't run x86-64-" + wanted + " code");
  }
  throw std::invalid_argument(std::string(kVariable) + "=" + wanted +
                              " is not a version of the kernels; use v4, v3 or baseline");
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{initial_isa()};
  return isa;
}

}  // namespace

const Table& table() { return table_of(selected_isa()); }

Isa selected_isa() { return chosen().load(std::memory_order_relaxed); }

bool isa_available(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::V4) return __builtin_cpu_supports("x86-64-v4") != 0;
  if (isa == Isa::V3) return __builtin_cpu_supports("x86-64-v3") != 0;
#endif
  return isa == Isa::Baseline;
}

void select_isa(Isa isa) {
  if (!isa_available(isa)) {
    throw std::invalid_argument(std::string("this host can't run the kernels for ") +
                                (isa == Isa::V4 ? "v4" : "v3"));
  }
  chosen().store(isa, std::memory_order_relaxed);
}

bool is_bit_move(HostFormat host, DataFormat device) {
  switch (device) {
    case DataFormat::IEEE_FP32:
      return host == HostFormat::Float32;
    case DataFormat::IEEE_FP16:
      return host == HostFormat::Float16;
    case DataFormat::BFLOAT16:
      return host == HostFormat::BFloat16;
    case DataFormat::IEEE_INT32:
      return host == HostFormat::Int32;
    case DataFormat::SEN143_FP8:
      return host == HostFormat::Float8E4M3;
    case DataFormat::SEN152_FP8:
      return host == HostFormat::Float8E5M2;
    case DataFormat::SENINT8:
    case DataFormat::SENINT16:
    case DataFormat::IEEE_INT64:
      return can_convert(host, device);
    default:
      return false;
  }
}

Codec codec_to_card(HostFormat host, DataFormat device) {
  const auto convert = table().to_card[static_cast<size_t>(host)][static_cast<size_t>(device)];
  return {host_element_bytes(host), element_bytes(device),
          is_bit_move(host, device) ? nullptr : convert};
}

Codec codec_to_host(HostFormat host, DataFormat device) {
  const auto convert = table().to_host[static_cast<size_t>(host)][static_cast<size_t>(device)];
  return {element_bytes(device), host_element_bytes(host),
          is_bit_move(host, device) ? nullptr : convert};
}

}  // namespace spyre::kernels
