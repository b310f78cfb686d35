// What checked mode does around one step on one core: it plays the step once more, on states
// instead of numbers. The rules, per kind of step:
//
//   Pointwise, Gather  a result lane is as bad as the worst lane it is computed from (`where`: of
//   Scatter            those it selects); an index must be valid
//                      memory that nobody wrote may be copied, but not computed with
//   Ring               a copy of each part; its cores have waited for each other
//   Restickify         states move with their elements
//   Reduction, Matmul  what is accumulated, sorted or scanned must be valid. Only lanes that stand
//   for themselves may Argsort, Scan      be bad throughout: padding columns. Lane 0 of a stick
//   never is padding
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "checker.h"
#include "shadow.h"
#include "step.h"
#include "table_index.h"
#include "walk.h"

namespace spyre {

// A buffer that operands of a program name.
struct Buffer {
  Space space = Space::Device;
  uint32_t symbol = 0;
  std::string name;
};

// One launch, as the checks of its steps see it.
struct CheckedLaunch {
  const Machine& machine;
  const ProgramNames& names;
  const std::string& where;
  const Shadow& device;
  const Shadow& lx;
  CheckMode mode;
  Touched& touched;

  std::vector<Buffer> buffers{};      // 0 is no buffer
  std::vector<uint32_t> buffer_of{};  // per operand of the program
  uint32_t start = 1;                 // number of the launch's first run of a step
  uint32_t barrier = 1;               // number of the first run since the last barrier
  uint32_t run = 0;                   // number of the run under way
  std::vector<uint32_t> step_of{};    // per run of the launch

  uint32_t step_of_run(uint32_t number) const { return step_of[number - start]; }
};

// A way through some of a step's dimensions, with the place that it has reached in each operand.
class StepWalk {
 public:
  // `dims` has a bit per dimension to walk; the others stay at their first iteration, or where
  // `from` stands.
  StepWalk(const CoreStep& step, uint32_t dims, const std::array<uint64_t, kMaxOperands>& start);
  StepWalk(const StepWalk& from, uint32_t dims);

  bool next();  // false: was at the last place, and is at the first again
  int64_t index(int dim) const { return index_[dim]; }
  uint64_t offset(int operand) const { return offset_[operand]; }
  // At the last iteration of the stick dimension, on a core where that one lacks tiles?
  bool is_at_tail() const;

 private:
  void move(int dim, int64_t by);

  const CoreStep& step_;
  uint32_t dims_;
  std::array<int64_t, kStepRank> index_{};
  std::array<uint64_t, kMaxOperands> offset_{};
};

class CheckedStep {
 public:
  using Lane = std::array<uint8_t, kStickBytes>;  // a state per lane

  // The worst that was accumulated into each lane.
  struct Accumulation {
    Lane worst;
    bool is_empty = true;
    Accumulation();
    void add(const Lane& lanes, int64_t count);
    void add_valid();
    void merge(const Accumulation& other);
  };
  using Results = std::vector<Accumulation>;  // in the order in which a step gives them

  CheckedStep(CheckedLaunch& launch, uint32_t step, int core, const CoreStep& bound);

  // The core is a partner in a ring, whose results are worse than none of its parts. What goes
  // round is no memory, so no core races for it: `before` of each partner collects in `results`,
  // then `before_results` of each sets the states of what it will write. `stores` if it writes.
  void join_ring(Results& results, bool stores);
  void before_results();

  // Before the step computes: checks what it reads and sets the states of what it will write.
  // Throws CardFault.
  void before();
  // After it, in CheckMode::NonFinite: tells finite results from others. Throws CardFault where
  // those came from finite operands.
  void after();

 private:
  void pointwise();
  void restickify();
  void gather();
  void scatter();
  void scan();
  void reduction();
  void matmul();

  // Memory. Offsets count from the start of device memory, or of core 0's LX.
  bool is_lx(int operand) const;
  const Shadow& shadow_of(int operand) const;
  std::byte* memory_of(int operand) const;
  void touch_read(int operand, uint64_t offset);
  void touch_write(int operand, uint64_t offset);
  void touch(int operand, bool is_write);  // all that the operand's elements reach
  void check_buffer(int operand, uint64_t offset, const StickUse& use);
  void check_writer(int operand, uint64_t offset, uint32_t run);

  // The lanes of one iteration, of which the first `tiles` sticks are present.
  int lanes_per_tile(int operand) const;
  int present_tiles(int operand, const StepWalk& walk) const;
  bool read_if_valid(int operand, uint64_t offset, int tiles);
  void read_lanes(int operand, uint64_t offset, int tiles, Lane& lanes);
  void write_lanes(int operand, uint64_t offset, int tiles, const Lane& lanes);
  void write_element(int operand, uint64_t offset, uint8_t state);
  void write_valid(int operand, uint64_t offset, int tiles);
  void write_first(int operand, uint64_t offset, uint8_t state);
  uint8_t word_state(int operand) const;
  void load_values(int operand, uint64_t offset, int tiles, std::array<float, kStickBytes>& to);
  void combine(const StepWalk& walk, Lane& lanes);
  void check_first_lanes(const char* use, int operand, uint64_t offset, int tiles,
                         const Lane& lanes, uint8_t least) const;

  // Accumulation. `limit`: how many lanes count at a place; 0 where the place itself is masked.
  int64_t limit(const StepWalk& walk, int lane_dim) const;
  void accumulate(const StepWalk& outer, Accumulation& sums);
  void give(const StepWalk& outer, const Accumulation& sums, size_t number);
  void write_result(const StepWalk& outer, const Accumulation& sums);
  uint8_t check_rows();
  void accumulate_column(const StepWalk& outer, Accumulation& sums);

  // Tables and rows (checked_rows.cpp). Calls `visit(walk, row)` for each iteration, with the place
  // in the table that its index names, up to the first index outside: the step itself reports it.
  template <typename Visit>
  void for_each_indexed(Visit visit);
  void check_index(uint64_t offset);

  // Reports (checked_report.cpp).
  const StepName* name_of(uint32_t step) const;
  std::string step_text(uint32_t step) const;
  std::string operand_text(int operand) const;
  std::string place_text(int operand, uint64_t offset, int64_t bytes) const;
  [[noreturn]] void fail(const std::string& found, int operand, uint64_t offset, int64_t bytes,
                         const std::string& advice) const;
  [[noreturn]] void fail_lane(const char* use, int operand, uint64_t offset, int lane,
                              uint8_t state) const;
  [[noreturn]] void fail_race(const char* what, int operand, uint64_t offset, uint8_t other,
                              uint32_t run) const;
  [[noreturn]] void fail_value(uint64_t offset, float value) const;

  CheckedLaunch& launch_;
  const Program& program_;
  const uint32_t step_;
  const int core_;
  const CoreStep& bound_;
  const StepRecord& record_;
  const int output_;                              // which operand is the result
  std::array<uint64_t, kMaxOperands> start_{};    // where the first iteration is
  std::array<uint32_t, kMaxOperands> writers_{};  // LX without names: who wrote what was read
  Results* ring_ = nullptr;                       // what the partners of a ring have in common
  bool stores_ = true;
};

template <typename Visit>
void CheckedStep::for_each_indexed(Visit visit) {
  const int table = table_of(record_);
  StepWalk walk(bound_, ~0U, start_);
  do {
    const int32_t index = index_at(memory_of(kIndex) + walk.offset(kIndex));
    if (index < 0 || index >= table_rows(bound_)) return;
    visit(walk, walk.offset(table) + index * bound_.operand[table].record->tile_stride);
  } while (walk.next());
}

}  // namespace spyre
