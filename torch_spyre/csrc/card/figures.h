// What a program costs on the card's clock, step by step, from its description alone.
#pragma once

#include <cstdint>
#include <vector>

namespace spyre {

struct Program;

// One step, all its visits in one launch together.
struct StepFigures {
  int64_t visits = 0;
  int cores = 0;
  int64_t bytes_read = 0;  // device memory, distinct sticks per visit
  int64_t bytes_written = 0;
  int64_t lx_read = 0;  // bytes of the busiest core
  int64_t lx_written = 0;
  int64_t ring_bytes = 0;  // all cores together
  int64_t macs = 0;        // multiply-adds, likewise
  int64_t nanoseconds = 0;
  int64_t pt = 0, sfp = 0, memory = 0, lx = 0, ring = 0;  // busy, ns
};

// Of a validated program. Valid lengths that a launch binds are taken as their longest.
std::vector<StepFigures> figures_of(const Program& program);

}  // namespace spyre
