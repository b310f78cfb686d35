#include "checked_step.h"

#include <algorithm>
#include <cstring>

#include "values.h"

namespace spyre {
namespace {

constexpr uint64_t kAllValid = 0x0101010101010101 * uint64_t{kValid};

bool are_valid(const uint8_t* states) {
  uint64_t difference = 0;
  for (int i = 0; i < kStickBytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, states + i, sizeof(word));
    difference |= word ^ kAllValid;
  }
  return difference == 0;
}

uint8_t element_state(const uint8_t* states, int bytes) {
  return *std::min_element(states, states + bytes);
}

uint64_t stick_of(uint64_t offset) { return offset / kStickBytes * kStickBytes; }

// The states of `n` elements on the way to another place or format.
template <int From, int To>
int64_t move_states(const std::byte* from, std::byte* to, int64_t n) {
  const auto* source = reinterpret_cast<const uint8_t*>(from);
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t state = std::max<uint8_t>(element_state(source + i * From, From), kUndefined);
    std::memset(to + i * To, state, To);
  }
  return 0;
}

template <int From>
kernels::Convert state_mover(int to) {
  switch (to) {
    case 1:
      return move_states<From, 1>;
    case 2:
      return move_states<From, 2>;
    default:
      return move_states<From, 4>;
  }
}

kernels::Convert state_mover(int from, int to) {
  switch (from) {
    case 1:
      return state_mover<1>(to);
    case 2:
      return state_mover<2>(to);
    default:
      return state_mover<4>(to);
  }
}

}  // namespace

// ---- Walking -----------------------------------------------------------------------------------

StepWalk::StepWalk(const CoreStep& step, uint32_t dims,
                   const std::array<uint64_t, kMaxOperands>& start)
    : step_(step), dims_(dims), offset_(start) {}

StepWalk::StepWalk(const StepWalk& from, uint32_t dims)
    : step_(from.step_), dims_(dims), index_(from.index_), offset_(from.offset_) {}

bool StepWalk::next() {
  for (int dim = step_.record->rank - 1; dim >= 0; --dim) {
    if ((dims_ >> dim & 1) == 0) continue;
    if (index_[dim] + 1 < step_.extent[dim]) {
      move(dim, 1);
      return true;
    }
    move(dim, -index_[dim]);
  }
  return false;
}

void StepWalk::move(int dim, int64_t by) {
  index_[dim] += by;
  for (int i = 0; i < step_.operands(); ++i) {
    offset_[i] += static_cast<uint64_t>(step_.operand[i].record->stride[dim]) * by;
  }
}

bool StepWalk::is_at_tail() const {
  const int dim = step_.record->stick_dim;
  return step_.is_tail && index_[dim] == step_.extent[dim] - 1;
}

// ---- Memory ------------------------------------------------------------------------------------

CheckedStep::CheckedStep(CheckedLaunch& launch, uint32_t step, int core, const CoreStep& bound)
    : launch_(launch),
      program_(launch.machine.program),
      step_(step),
      core_(core),
      bound_(bound),
      record_(*bound.record),
      output_(bound.record->inputs) {
  for (int i = 0; i < bound_.operands(); ++i) {
    if (bound_.operand[i].address != nullptr) start_[i] = bound_.operand[i].address - memory_of(i);
  }
}

bool CheckedStep::is_lx(int operand) const { return is_in_lx(*bound_.operand[operand].record); }
const Shadow& CheckedStep::shadow_of(int operand) const {
  return is_lx(operand) ? launch_.lx : launch_.device;
}
std::byte* CheckedStep::memory_of(int operand) const {
  return is_lx(operand) ? launch_.machine.lx : launch_.machine.device;
}

void CheckedStep::touch_read(int operand, uint64_t offset) {
  StickUse& use = shadow_of(operand).use(offset);
  if (use.written >= launch_.barrier && use.writer != core_) {
    fail_race("reads a stick that another core writes, without a barrier in between", operand,
              offset, use.writer, use.written);
  }
  check_buffer(operand, offset, use);
  if (use.read < launch_.barrier) {
    use.reader = static_cast<uint8_t>(core_);
  } else if (use.reader != core_) {
    use.reader = kSeveralCores;
  }
  if (use.read != launch_.run && !is_lx(operand)) launch_.touched.read += kStickBytes;
  use.read = launch_.run;
}

void CheckedStep::touch_write(int operand, uint64_t offset) {
  StickUse& use = shadow_of(operand).use(offset);
  if (use.written >= launch_.barrier && use.writer != core_) {
    fail_race(use.written == launch_.run ? "writes a stick that another core writes in this step"
                                         : "writes a stick that another core writes, without a "
                                           "barrier in between",
              operand, offset, use.writer, use.written);
  }
  if (use.read >= launch_.barrier && use.reader != core_) {
    fail_race("writes a stick that another core reads, without a barrier in between", operand,
              offset, use.reader, use.read);
  }
  if (use.written != launch_.run && !is_lx(operand)) launch_.touched.written += kStickBytes;
  const uint32_t buffer = launch_.buffer_of[record_.first_operand + operand];
  const bool is_of_another = buffer != 0 && use.buffer != 0 && use.buffer != buffer;
  if (is_of_another && use.written >= launch_.start) {
    // A dead buffer lay here: what the step leaves of it is padding of the new one.
    std::fill_n(shadow_of(operand).states(stick_of(offset)), kStickBytes, kPoison);
  }
  use.written = launch_.run;
  use.writer = static_cast<uint8_t>(core_);
  use.buffer = buffer;
}

void CheckedStep::touch(int operand, bool is_write) {
  const OperandRecord& record = *bound_.operand[operand].record;
  const auto rank = static_cast<size_t>(record_.rank);
  for_each_run({bound_.extent.data(), rank}, {record.stride, rank},
               element_bytes(format_of(record)), [&](int64_t offset, int64_t bytes) {
                 const uint64_t first = start_[operand] + offset;
                 for (uint64_t stick = stick_of(first); stick < first + bytes;
                      stick += kStickBytes) {
                   is_write ? touch_write(operand, stick) : touch_read(operand, stick);
                 }
               });
}

// ---- The lanes of an iteration -----------------------------------------------------------------

int CheckedStep::lanes_per_tile(int operand) const {
  return elems_per_stick(format_of(*bound_.operand[operand].record));
}

int CheckedStep::present_tiles(int operand, const StepWalk& walk) const {
  const CoreOperand& it = bound_.operand[operand];
  const int tail = it.record->tail_tiles;
  return walk.is_at_tail() && tail != 0 ? std::min(tail, it.tiles) : it.tiles;
}

uint8_t CheckedStep::word_state(int operand) const {
  const CoreOperand& it = bound_.operand[operand];
  const auto space = static_cast<Space>(it.record->space);
  const bool is_float = format_info(format_of(*it.record)).domain == Domain::Float;
  const bool is_word = space == Space::Scalar || space == Space::Constant;
  const bool is_watched = launch_.mode == CheckMode::NonFinite && is_word && is_float;
  return is_watched && !is_finite(std::bit_cast<float>(it.word)) ? kNonFinite : kValid;
}

// Most sticks are valid throughout; `read_lanes` is for the others.
bool CheckedStep::read_if_valid(int operand, uint64_t offset, int tiles) {
  const CoreOperand& it = bound_.operand[operand];
  if (!is_in_memory(*it.record)) return word_state(operand) == kValid;
  const Shadow& shadow = shadow_of(operand);
  if (lanes_of(*it.record) != Lanes::Vector) {
    touch_read(operand, offset);
    return element_state(shadow.states(offset), element_bytes(format_of(*it.record))) == kValid;
  }
  bool is_valid = tiles == it.tiles;
  for (int tile = 0; tile < tiles; ++tile) {
    const uint64_t stick = offset + tile * it.record->tile_stride;
    touch_read(operand, stick);
    is_valid = is_valid && are_valid(shadow.states(stick));
  }
  return is_valid;
}

void CheckedStep::read_lanes(int operand, uint64_t offset, int tiles, Lane& lanes) {
  const CoreOperand& it = bound_.operand[operand];
  if (!is_in_memory(*it.record)) {
    lanes.fill(word_state(operand));
    return;
  }
  const Shadow& shadow = shadow_of(operand);
  const int bytes = element_bytes(format_of(*it.record));
  if (lanes_of(*it.record) != Lanes::Vector) {
    touch_read(operand, offset);
    lanes.fill(element_state(shadow.states(offset), bytes));
    return;
  }
  lanes.fill(kPoison);  // what missing tiles read as: zeros, but padding
  const int count = lanes_per_tile(operand);
  for (int tile = 0; tile < tiles; ++tile) {
    const uint64_t stick = offset + tile * it.record->tile_stride;
    touch_read(operand, stick);
    const uint8_t* states = shadow.states(stick);
    for (int i = 0; i < count; ++i) {
      lanes[tile * count + i] = element_state(states + i * bytes, bytes);
    }
  }
}

void CheckedStep::write_lanes(int operand, uint64_t offset, int tiles, const Lane& lanes) {
  const CoreOperand& it = bound_.operand[operand];
  const int bytes = element_bytes(format_of(*it.record));
  const int count = lanes_per_tile(operand);
  for (int tile = 0; tile < tiles; ++tile) {
    const uint64_t stick = offset + tile * it.record->tile_stride;
    touch_write(operand, stick);
    uint8_t* states = shadow_of(operand).states(stick);
    for (int i = 0; i < count; ++i) {
      const uint8_t state = std::max<uint8_t>(lanes[tile * count + i], kUndefined);
      std::memset(states + i * bytes, state, bytes);
    }
  }
}

void CheckedStep::write_element(int operand, uint64_t offset, uint8_t state) {
  touch_write(operand, offset);
  std::memset(shadow_of(operand).states(offset), std::max<uint8_t>(state, kUndefined),
              element_bytes(format_of(*bound_.operand[operand].record)));
}

void CheckedStep::write_valid(int operand, uint64_t offset, int tiles) {
  for (int tile = 0; tile < tiles; ++tile) {
    const uint64_t stick = offset + tile * bound_.operand[operand].record->tile_stride;
    touch_write(operand, stick);
    std::memset(shadow_of(operand).states(stick), kValid, kStickBytes);
  }
}

void CheckedStep::write_first(int operand, uint64_t offset, uint8_t state) {
  touch_write(operand, offset);
  uint8_t* states = shadow_of(operand).states(offset);
  std::memset(states, kPoison, kStickBytes);
  std::memset(states, state, element_bytes(format_of(*bound_.operand[operand].record)));
}

// Lane 0 of a stick is never padding: where it is worse than `least`, the stick is the wrong one.
void CheckedStep::check_first_lanes(const char* use, int operand, uint64_t offset, int tiles,
                                    const Lane& lanes, uint8_t least) const {
  const CoreOperand& it = bound_.operand[operand];
  if (!is_in_memory(*it.record)) return;
  const bool is_vector = lanes_of(*it.record) == Lanes::Vector;
  const int count = is_vector ? lanes_per_tile(operand) : 0;
  for (int tile = 0; tile < (is_vector ? tiles : 1); ++tile) {
    if (lanes[tile * count] >= least) continue;
    fail_lane(use, operand, offset + tile * it.record->tile_stride * (is_vector ? 1 : 0), 0,
              lanes[tile * count]);
  }
}

// ---- Pointwise ---------------------------------------------------------------------------------

void CheckedStep::before() {
  switch (static_cast<StepKind>(record_.kind)) {
    case StepKind::Pointwise:
    case StepKind::Ring:
      return pointwise();
    case StepKind::Restickify:
      return restickify();
    case StepKind::Reduction:
      return reduction();
    case StepKind::Matmul:
      return matmul();
    case StepKind::Gather:
      return gather();
    case StepKind::Scatter:
      return scatter();
    case StepKind::Argsort:
    case StepKind::Scan:
      return scan();
  }
}

void CheckedStep::pointwise() {
  StepWalk walk(bound_, ~0U, start_);
  do {
    bool is_valid = true;
    for (int i = 0; i < record_.inputs; ++i) {
      is_valid &= read_if_valid(i, walk.offset(i), present_tiles(i, walk));
    }
    const int tiles = present_tiles(output_, walk);
    if (is_valid) {
      write_valid(output_, walk.offset(output_), tiles);
    } else {
      Lane lanes;
      combine(walk, lanes);
      write_lanes(output_, walk.offset(output_), tiles, lanes);
    }
  } while (walk.next());
}

void CheckedStep::combine(const StepWalk& walk, Lane& lanes) {
  const auto opcode = static_cast<Opcode>(record_.opcode);
  // Copies move what nobody wrote: a mistake only if someone computes with it.
  const bool is_copy = opcode == Opcode::identity || opcode == Opcode::identity_int;
  std::array<Lane, kMaxInputs> in;
  for (int i = 0; i < record_.inputs; ++i) {
    const int tiles = present_tiles(i, walk);
    read_lanes(i, walk.offset(i), tiles, in[i]);
    if (!is_copy) check_first_lanes("is read", i, walk.offset(i), tiles, in[i], kUndefined);
  }
  if (opcode == Opcode::where || opcode == Opcode::where_int) {
    std::array<float, kStickBytes> condition;
    load_values(0, walk.offset(0), present_tiles(0, walk), condition);
    for (int i = 0; i < bound_.lanes; ++i) {
      const uint8_t selected = condition[i] != 0 ? in[1][i] : in[2][i];
      lanes[i] = is_defined(in[0][i]) ? selected : in[0][i];
    }
    return;
  }
  lanes = in[0];
  for (int i = 1; i < record_.inputs; ++i) {
    for (int lane = 0; lane < bound_.lanes; ++lane) {
      lanes[lane] = std::min(lanes[lane], in[i][lane]);
    }
  }
}

// The numbers in the lanes of a float operand; missing tiles are zeros.
void CheckedStep::load_values(int operand, uint64_t offset, int tiles,
                              std::array<float, kStickBytes>& to) {
  const CoreOperand& it = bound_.operand[operand];
  to.fill(is_in_memory(*it.record) ? 0 : std::bit_cast<float>(it.word));
  if (!is_in_memory(*it.record)) return;
  const DataFormat format = format_of(*it.record);
  if (lanes_of(*it.record) != Lanes::Vector) {
    for_each_value(format, memory_of(operand) + offset, 1,
                   [&](int64_t, float value) { to.fill(value); });
    return;
  }
  const int count = lanes_per_tile(operand);
  for (int tile = 0; tile < tiles; ++tile) {
    const std::byte* stick = memory_of(operand) + offset + tile * it.record->tile_stride;
    for_each_value(format, stick, count,
                   [&](int64_t i, float value) { to[tile * count + i] = value; });
  }
}

// ---- Restickify -------------------------------------------------------------------------------

void CheckedStep::restickify() {
  const OperandRecord& from = *bound_.operand[0].record;
  const OperandRecord& to = *bound_.operand[1].record;
  touch(0, false);
  touch(1, true);
  kernels::CopyNest nest;
  for (int dim = 0; dim < record_.rank; ++dim) {
    if (bound_.extent[dim] == 1) continue;  // the stride was not checked
    nest.extent[nest.rank] = bound_.extent[dim];
    nest.from_stride[nest.rank] = from.stride[dim];
    nest.to_stride[nest.rank] = to.stride[dim];
    ++nest.rank;
  }
  const int from_bytes = element_bytes(format_of(from));
  const int to_bytes = element_bytes(format_of(to));
  const uint8_t* source = shadow_of(0).states(start_[0]);
  uint8_t* target = shadow_of(1).states(start_[1]);
  kernels::run_copy(nest, {from_bytes, to_bytes, state_mover(from_bytes, to_bytes)},
                    reinterpret_cast<const std::byte*>(source),
                    reinterpret_cast<std::byte*>(target));
}

// ---- Values ------------------------------------------------------------------------------------

void CheckedStep::after() {
  if (!stores_) return;
  const OperandRecord& output = *bound_.operand[output_].record;
  const DataFormat format = format_of(output);
  if (format_info(format).domain != Domain::Float) return;
  const int bytes = element_bytes(format);
  const auto check = [&](uint64_t offset, int64_t count) {
    uint8_t* states = shadow_of(output_).states(offset);
    for_each_value(format, memory_of(output_) + offset, count, [&](int64_t i, float value) {
      uint8_t* state = states + i * bytes;
      if (!is_defined(*state)) return;
      if (!is_finite(value) && *state == kValid) fail_value(offset + i * bytes, value);
      std::memset(state, is_finite(value) ? kValid : kNonFinite, bytes);
    });
  };
  if (is_kind(record_, StepKind::Scatter)) {
    const bool is_element = lanes_of(output) == Lanes::Element;
    for_each_indexed([&](const StepWalk&, uint64_t row) {
      check(row, is_element ? 1 : lanes_per_tile(output_));
    });
    return;
  }
  if (lanes_of(output) == Lanes::Element) {
    const auto rank = static_cast<size_t>(record_.rank);
    for_each_run(
        {bound_.extent.data(), rank}, {output.stride, rank}, bytes,
        [&](int64_t offset, int64_t run) { check(start_[output_] + offset, run / bytes); });
    return;
  }
  const bool is_scan = is_kind(record_, StepKind::Scan);
  StepWalk walk(bound_, is_scan ? ~0U : ~static_cast<uint32_t>(record_.reduced), start_);
  do {
    const bool is_vector = lanes_of(output) == Lanes::Vector;
    const int tiles = is_vector ? present_tiles(output_, walk) : 1;
    for (int tile = 0; tile < tiles; ++tile) {
      check(walk.offset(output_) + tile * output.tile_stride * (is_vector ? 1 : 0),
            is_vector ? lanes_per_tile(output_) : 1);
    }
  } while (walk.next());
}

}  // namespace spyre
