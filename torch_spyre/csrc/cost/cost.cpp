#include "cost.h"

#include <algorithm>
#include <cmath>

namespace spyre::cost {
namespace {

// 1 GB/s is one byte per nanosecond, so the published bandwidths are used as they stand.

// ---- Published: fitted by others to measurements on hardware, fp16 ----------------------------

constexpr double kTurnaround = 0.00574;     // ns per byte that goes against the main direction
constexpr double kRestickifyRate = 116;     // standalone, through LPDDR5
constexpr double kCrossRowRate = 113;       // standalone cross-row reduction
constexpr double kBroadcastRate = 118;      // standalone pointwise with a broadcast operand
constexpr double kRowReductionFloor = 114;  // read rate of a standalone row reduction ...
constexpr double kRowReductionGain = 61;    // ... which is higher while there are few rows
constexpr double kRowReductionDecay = 3700;
constexpr double kRowsPerPass = 8;
constexpr double kPassesToFill = 8;
constexpr double kFreeBroadcast = 8;      // cores that share a matmul operand free of charge
constexpr double kRingPerElement = 0.14;  // ns, for each hop of a K split
constexpr double kRelayoutRate = 550;
constexpr double kTileRows = 7.9, kTileRowsPower = 0.50;
constexpr double kTileColumns = 2048, kTileColumnsPower = 0.38;

// ---- Ours, until someone measures -------------------------------------------------------------

constexpr double kSfpRate = 140;  // elements per core
constexpr double kLxRate = 128;   // bytes per core, each way
constexpr double kPcieRate = 50;

// Speed of the array relative to fp16 (ours).
double mac_factor(int bits) {
  if (bits <= 4) return 4;
  if (bits <= 8) return 2;
  if (bits <= 16) return 1;
  return 0.25;
}

// -----------------------------------------------------------------------------------------------

double mixed_traffic(double read, double written) {
  return (read + written) / kMemoryRate + kTurnaround * std::min(read, written);
}

// What an operand shared by more than eight cores costs beyond reading it once.
//
// Our reading of "the operand's bandwidth falls linearly with the cores": one read serves eight
// cores, so with s > 8 of them the operand streams at 150 x 8/s GB/s. Its bytes still cross the
// memory bus once, so the turnaround term does not grow with it.
double broadcast_surcharge(double bytes, int sharers) {
  return bytes / kMemoryRate * std::max(0.0, sharers / kFreeBroadcast - 1);
}

double untiled_memory(const Step& step) {
  const auto read = static_cast<double>(step.bytes_read);
  const auto written = static_cast<double>(step.bytes_written);
  switch (step.traffic) {
    case Traffic::Restickify:
      return (read + written) / kRestickifyRate;
    case Traffic::CrossRowReduction:
      return (read + written) / kCrossRowRate;
    case Traffic::RowReduction: {
      // The law gives a read rate only; the few bytes written go at the one-way rate (ours).
      const double decayed = std::exp(-static_cast<double>(step.rows) / kRowReductionDecay);
      const double rate = std::min(kMemoryRate, kRowReductionFloor + kRowReductionGain * decayed);
      return read / rate + written / kMemoryRate;
    }
    case Traffic::BroadcastPointwise:
      return (read + written) / kBroadcastRate;
    case Traffic::Matmul:
      return mixed_traffic(read, written) +
             broadcast_surcharge(static_cast<double>(step.a_bytes), step.a_broadcast) +
             broadcast_surcharge(static_cast<double>(step.b_bytes), step.b_broadcast);
    case Traffic::Fused:
      break;
  }
  return mixed_traffic(read, written);
}

double tile_efficiency(const Step& step) {
  const bool tiled = step.tile_rows_per_core > 0 && step.tile_columns > 0;
  if (!tiled || step.traffic == Traffic::Matmul) return 1;
  const double rows = static_cast<double>(step.tile_rows_per_core) / kTileRows;
  const double columns = static_cast<double>(step.tile_columns) / kTileColumns;
  return std::min(1.0, std::pow(rows, kTileRowsPower) * std::pow(columns, kTileColumnsPower));
}

double matrix_unit(const Step& step) {
  const auto m = static_cast<double>(step.m);
  const double macs = m * static_cast<double>(step.n) * static_cast<double>(step.k) *
                      static_cast<double>(step.batch);
  if (macs <= 0) return 0;
  // Passes are not rounded up: with whole passes in the fill but true MACs in the work, nine rows
  // would take less time than eight.
  const double fill = std::min(1.0, std::sqrt(m / kRowsPerPass / kPassesToFill));
  return macs / (kMacRate * mac_factor(step.bits) * fill);
}

double ring(const Step& step) {
  const double hops = std::max(0, step.k_split - 1);
  const double partial_sums = hops * static_cast<double>(step.output_elements) * kRingPerElement;
  const double relayout =
      static_cast<double>(step.relayout_bytes) * std::max(1, step.relayout_split) / kRelayoutRate;
  return partial_sums + relayout;
}

int64_t whole_nanoseconds(double time) {
  // `exp` and `pow` differ in their last bit between C libraries; without the margin that bit
  // could become a nanosecond on one host and not on another.
  constexpr double kMargin = 1e-12;
  // Keeps the conversion defined for absurd steps; 2^53 ns are about 104 days.
  constexpr double kLongest = 9007199254740992.0;
  return static_cast<int64_t>(std::ceil(std::min(time, kLongest) * (1 - kMargin)));
}

}  // namespace

Breakdown breakdown(const Step& step) {
  return {
      .pt = matrix_unit(step),
      .sfp = static_cast<double>(step.sfp_elements) / kSfpRate,
      .memory = untiled_memory(step) / tile_efficiency(step),
      .lx = static_cast<double>(std::max(step.lx_read, step.lx_written)) / kLxRate,
      .ring = ring(step),
  };
}

int64_t nanoseconds(const Step& step) {
  const Breakdown units = breakdown(step);
  return whole_nanoseconds(std::max({units.pt, units.sfp, units.memory, units.lx}) + units.ring);
}

int64_t ring_bytes(const Step& step) {
  const int64_t hops = std::max(0, step.k_split - 1);
  const int64_t groups = std::max(1, step.cores / std::max(1, step.k_split));
  return step.relayout_bytes + hops * groups * step.output_elements * int64_t{sizeof(float)};
}

int64_t relayed_bytes(int64_t bytes, int takers) {
  const double rounds = std::max(1.0, takers / kFreeBroadcast);
  return static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * rounds));
}

Limits limits() { return {kMacRate, kMemoryRate, kPcieRate}; }

int64_t dma_nanoseconds(int64_t bytes) {
  return whole_nanoseconds(static_cast<double>(bytes) / kPcieRate);
}

}  // namespace spyre::cost
