// A step as one core sees it, and the functions that run it, one file per kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "driver.h"
#include "kernels.h"
#include "program.h"
#include "threads.h"

namespace spyre {

inline constexpr int kMaxOperands = kMaxInputs + 1;
inline constexpr int kMaxMasks = 4;

// Where everything is while a program runs.
struct Machine {
  const Program& program;
  std::span<const Binding> bindings;
  std::byte* device = nullptr;   // address 0 of the card's memory
  std::byte* lx = nullptr;       // core 0's
  int64_t lx_stride = kLxBytes;  // to the next core's; 0 where cores take turns with one scratchpad
};

struct CoreOperand {
  const OperandRecord* record = nullptr;
  int tiles = 1;                    // sticks per iteration
  std::byte* address = nullptr;     // Device, Lx: of the first iteration
  uint64_t count = 0;               // Iota: the value of the first iteration's lane 0
  kernels::Word word = 0;           // Scalar, Constant
  bool is_streamed = false;         // a result too large for the host's caches
  std::span<const int64_t> owners;  // Ring: of the parts; `address` is that on core 0
};

// Of the positions along a dimension, counted from the core's first one, those below `count` take
// part. `dim` is kNoStickDim for the rows of a Gather's or Scatter's table.
struct CoreMask {
  uint8_t dim = kNoStickDim;
  int64_t count = 0;  // may be negative or beyond the extent
};

struct CoreStep {
  const StepRecord* record = nullptr;
  int lanes = 1;         // elements of an iteration
  bool is_tail = false;  // the last iteration of the stick dimension lacks tiles
  int core = 0;
  std::array<int64_t, kStepRank> start{};  // the core's iterations before the first one here
  std::array<int64_t, kStepRank> extent{};
  std::array<CoreOperand, kMaxOperands> operand{};
  std::array<CoreMask, kMaxMasks> mask{};  // record->masks of them

  int operands() const { return record->inputs + record->outputs; }
  const CoreOperand& output() const { return operand[record->inputs]; }
  int64_t iterations() const;
};

// Binds a step for a core; `loops` are the indices of the enclosing loops, outermost first.
CoreStep bind_step(const Machine& machine, uint32_t step, int core,
                   std::span<const uint32_t> loops);

// Iterations [begin, end) of a dimension.
CoreStep slice_step(const CoreStep& step, int dim, int64_t begin, int64_t end);

// The parts of a Ring step on a core, one for each owner: copies from that owner's scratchpad.
std::vector<CoreStep> relayout_parts(const Machine& machine, const CoreStep& step);

// A dimension along which slices write disjoint memory, so that threads can share the step; -1 if
// there is none.
int slice_dimension(const CoreStep& step);

// Runs a bound step that has iterations. One row per kind: the seam for
// new kinds, and for a second table of checked steps.
using RunStep = void (*)(const CoreStep& step);
using StepTable = std::array<RunStep, kStepKinds>;
const StepTable& fast_steps();

void run_pointwise(const CoreStep& step);
void run_restickify(const CoreStep& step);
void run_reduction(const CoreStep& step);
void run_gather(const CoreStep& step);
void run_scatter(const CoreStep& step);
void run_argsort(const CoreStep& step);
void run_scan(const CoreStep& step);

// How many partners of each ring store the results: the first alone, if they have one place.
int storing_partners(std::span<const CoreStep> cores);

// A Matmul runs for all its cores at once, so that they share what they unpack: `cores` are its
// bound cores that have iterations. `pool` is null where threads are not worth waking.
void run_matmul(std::span<const CoreStep> cores, ThreadPool* pool);

// A Reduction whose cores form rings, for all of them at once.
void run_ring_reduction(std::span<const CoreStep> cores, ThreadPool* pool);

}  // namespace spyre
