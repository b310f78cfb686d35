// Checked mode: buffers that overlap, and the words of all reports.
#include <algorithm>
#include <cmath>
#include <string>

#include "checked_step.h"

namespace spyre {
namespace {

std::string quoted(const std::string& name) { return "'" + name + "'"; }

std::string range_text(uint64_t first, int64_t bytes) {
  return "bytes [" + std::to_string(first) + ", " + std::to_string(first + bytes) + ")";
}

bool has_loop_strides(const OperandRecord& operand) {
  return std::any_of(std::begin(operand.loop_stride), std::end(operand.loop_stride),
                     [](int64_t stride) { return stride != 0; });
}

}  // namespace

// ---- Overlapping buffers -----------------------------------------------------------------------

// A stick holds what the last write put there: is that the buffer which the operand means?
void CheckedStep::check_buffer(int operand, uint64_t offset, const StickUse& use) {
  if (use.written < launch_.start) return;  // by an earlier kernel, or by nobody
  const uint32_t meant = launch_.buffer_of[record_.first_operand + operand];
  if (meant == 0 || use.buffer == 0) {
    if (is_lx(operand)) check_writer(operand, offset, use.written);
    return;
  }
  if (use.buffer == meant) return;
  const Buffer& held = launch_.buffers[use.buffer];
  const OperandRecord& record = *bound_.operand[operand].record;
  const bool is_same_memory = is_lx(operand)
                                  ? held.space == Space::Lx
                                  : held.space == Space::Device && held.symbol == record.symbol;
  if (!is_same_memory) return;  // the launch bound one tensor twice
  fail("buffers overlap: the stick holds " + quoted(held.name) + ", which " +
           step_text(launch_.step_of_run(use.written)) + " wrote there",
       operand, offset, kStickBytes,
       "place the two buffers apart, or end the life of one before the other is written");
}

// Without names: what an operand reads was written by several steps, and the last of them wrote
// beyond it. That is another buffer.
void CheckedStep::check_writer(int operand, uint64_t offset, uint32_t run) {
  if (writers_[operand] == 0) writers_[operand] = run;
  const uint32_t other = writers_[operand];
  if (launch_.step_of_run(other) == launch_.step_of_run(run)) return;
  const uint32_t step = launch_.step_of_run(std::max(run, other));
  const StepRecord& writer = program_.steps[step];
  const OperandRecord& written = program_.operands[writer.first_operand + writer.inputs];
  const OperandRecord& read = *bound_.operand[operand].record;
  if (has_loop_strides(written) || has_loop_strides(read)) return;
  const int owner = static_cast<int>(offset / kLxBytes);
  const Reach wide = reach_of(program_, writer, written, owner, program_.lanes[step], {});
  const Reach own = reach_of(program_, record_, read, core_, bound_.lanes, {});
  if (wide.first >= own.first && wide.end <= own.end) return;
  fail("buffers overlap: " + step_text(step) + " wrote over a part of what is read here", operand,
       offset, kStickBytes,
       "place the two buffers apart, or end the life of one before the other is written");
}

// ---- Words -------------------------------------------------------------------------------------

const StepName* CheckedStep::name_of(uint32_t step) const {
  return step < launch_.names.steps.size() ? &launch_.names.steps[step] : nullptr;
}

std::string CheckedStep::step_text(uint32_t step) const {
  std::string text = "step " + std::to_string(step) + " (" +
                     std::string(opcode_info(program_.steps[step].opcode).name);
  const StepName* name = name_of(step);
  if (name != nullptr && !name->op.empty()) text += ", " + quoted(name->op);
  return text + ")";
}

std::string CheckedStep::operand_text(int operand) const {
  std::string text = operand == output_ ? "the result" : "input " + std::to_string(operand);
  const uint32_t buffer = launch_.buffer_of[record_.first_operand + operand];
  return buffer == 0 ? text : text + " " + quoted(launch_.buffers[buffer].name);
}

std::string CheckedStep::place_text(int operand, uint64_t offset, int64_t bytes) const {
  if (is_lx(operand)) return "LX, " + range_text(offset % kLxBytes, bytes);
  const uint32_t symbol = bound_.operand[operand].record->symbol;
  const uint64_t base = launch_.machine.bindings[symbol].value;
  return "symbol " + std::to_string(symbol) + ", " + range_text(offset - base, bytes);
}

void CheckedStep::fail(const std::string& found, int operand, uint64_t offset, int64_t bytes,
                       const std::string& advice) const {
  const std::string& kernel = launch_.names.kernel;
  std::string text = launch_.where + "check failed in " +
                     (kernel.empty() ? "a kernel" : "kernel " + quoted(kernel)) + ", " +
                     step_text(step_) + ", core " + std::to_string(core_) + "\n  found " + found +
                     "\n  in    " + operand_text(operand) + ": " +
                     place_text(operand, offset, bytes);
  const StepName* name = name_of(step_);
  if (name != nullptr && !name->source.empty()) text += "\n  from  " + name->source;
  throw CardFault(CardFault::Kind::CheckFailed, text + "\n  try   " + advice);
}

void CheckedStep::fail_lane(const char* use, int operand, uint64_t offset, int lane,
                            uint8_t state) const {
  const OperandRecord& record = *bound_.operand[operand].record;
  const int bytes = element_bytes(format_of(record));
  const int tile = lane / lanes_per_tile(operand);
  const std::string found =
      "an element (lane " + std::to_string(lane) + ") " + describe(state) + ", and " + use;
  fail(found, operand, offset + tile * record.tile_stride + lane % lanes_per_tile(operand) * bytes,
       bytes,
       state == kPoison ? "mask the padding, or write valid values there first"
                        : "write the buffer before it is read; if a step does, look at how its "
                          "work is divided among the cores");
}

void CheckedStep::fail_race(const char* what, int operand, uint64_t offset, uint8_t other,
                            uint32_t run) const {
  const std::string who =
      other == kSeveralCores ? "several cores" : "core " + std::to_string(other);
  const uint32_t step = launch_.step_of_run(run);
  const bool is_same_step = run == launch_.run;
  fail("a race: core " + std::to_string(core_) + " " + what + " (" + who +
           (is_same_step ? ", in the same step)" : ", in " + step_text(step) + ")"),
       operand, offset, kStickBytes,
       is_same_step ? "divide the step so that no two cores share a stick they write"
                    : "set the barrier flag of " + step_text(step_));
}

void CheckedStep::fail_value(uint64_t offset, float value) const {
  const std::string text = std::isnan(value) ? "NaN" : value < 0 ? "-inf" : "inf";
  fail("the first " + text + ": its operands are finite", output_, offset,
       element_bytes(format_of(*bound_.operand[output_].record)),
       "look at the operands' values; SPYRE_CARD_CHECK=1 does not stop here");
}

}  // namespace spyre
