// Card programs that move data from core to core.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "programs.h"

namespace spyre::testing::relayouts {

inline constexpr auto kFormat = DataFormat::IEEE_FP32;
inline constexpr int64_t kStick = kStickBytes;
inline constexpr int64_t kTarget = 64 * 1024;  // in LX

inline OperandRecord lx(ProgramBuilder& builder, std::vector<int64_t> bases,
                        const std::vector<int64_t>& stride) {
  return builder.operand(Space::Lx, 0, kFormat, Lanes::Vector, std::move(bases), stride);
}

// The source of a Ring step: `owners` in the order of the step's cores, then of their parts.
inline OperandRecord owned(ProgramBuilder& builder, const std::vector<int64_t>& owners,
                           std::vector<int64_t> bases, const std::vector<int64_t>& stride) {
  const auto table = static_cast<uint32_t>(builder.bases.size());
  builder.bases.insert(builder.bases.end(), owners.begin(), owners.end());
  return builder.operand(Space::Ring, table, kFormat, Lanes::Vector, std::move(bases), stride);
}

inline std::vector<int64_t> steps(int count, int64_t stride) {
  std::vector<int64_t> bases(count);
  for (int i = 0; i < count; ++i) bases[i] = i * stride;
  return bases;
}

inline uint32_t first_cores(int count) { return static_cast<uint32_t>((uint64_t{1} << count) - 1); }

// A tensor of `cores` x `rows` rows with a stick for each core. Each core loads its rows; then each
// collects a column of sticks from all of them, and stores it.
inline ProgramBuilder rows_to_columns(int cores, int64_t rows) {
  ProgramBuilder builder;
  const int64_t bytes = cores * cores * rows * kStick;
  const uint32_t x = builder.address(bytes, false, kFormat);
  const uint32_t y = builder.address(bytes, true, kFormat);
  const uint32_t all = first_cores(cores);
  const int64_t slice = rows * cores;  // sticks
  builder.run(builder.step(Opcode::identity, all, {slice},
                           {builder.device(x, kFormat, {kStick}, steps(cores, slice * kStick))},
                           lx(builder, {0}, {kStick})));
  std::vector<int64_t> owners;
  for (int core = 0; core < cores; ++core) {
    for (int part = 0; part < cores; ++part) owners.push_back(part);
  }
  const auto from = owned(builder, owners, steps(cores, kStick), {0, cores * kStick});
  const uint32_t ring =
      builder.step(Opcode::identity, all, {cores, rows}, {from},
                   lx(builder, {kTarget}, {rows * kStick, kStick}), StepKind::Ring);
  builder.steps[ring].reduced = 0b01;
  builder.steps[ring].ring = static_cast<uint8_t>(cores);
  builder.run(ring);
  builder.run(builder.step(Opcode::identity, all, {slice}, {lx(builder, {kTarget}, {kStick})},
                           builder.device(y, kFormat, {kStick}, steps(cores, slice * kStick))));
  return builder;
}
inline constexpr size_t kRing = 1;  // the step that moves

}  // namespace spyre::testing::relayouts
