// The words of a block stay in the host core's cache while the steps go over them, one after the
// other. What a step reads of an earlier one it takes from the words that that one left, rounded to
// the format of the buffer they stand for; only what is read by somebody else is stored. Operands
// that several steps read are widened once. Simple operations on sticks of SEN169, and those that
// are a table, take operands that nobody else reads as they are stored, and leave rounded words,
// sticks where a table follows, or nothing.
#include "chain.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <vector>

#include "blocks.h"
#include "lookup.h"
#include "streams.h"
#include "walk.h"

namespace spyre {
namespace {

using kernels::kBlockElements;
using kernels::Word;

// What a step reads from memory, or gives: a row of words in every block. Later steps name it by
// its place in the list of values, which is its walk, too.
constexpr int kMaxValues = kMaxWalks;

struct Value {
  const CoreOperand* operand;
  Stream stream;
  int row;       // of the words
  int last_use;  // the last step that reads it; of a result that nobody reads, its own
  bool is_result;
  bool is_stored;
  bool is_invariant;  // the same words in every block
  bool is_direct;     // read as it is stored: it has no words
  bool is_coded;      // a result for tables alone: its row holds sticks instead of words
};

struct Instruction {
  const CoreStep* step;
  std::array<int, kMaxInputs> in;  // values
  int loaded;                      // the first of the values that are loaded before it
  int out;
  kernels::Direct direct;  // one of these, or neither: load, compute, store
  const uint16_t* results;

  bool is_direct() const { return direct != nullptr || results != nullptr; }
};

bool is_identity(const StepRecord& step) {
  return step.opcode == static_cast<uint16_t>(Opcode::identity) ||
         step.opcode == static_cast<uint16_t>(Opcode::identity_int);
}

bool is_sen169(const CoreOperand& operand) {
  return format_of(*operand.record) == DataFormat::SEN169_FP16;
}

// Widening and narrowing give back every pattern.
bool is_exact(DataFormat format) {
  switch (format) {
    case DataFormat::SEN169_FP16:
    case DataFormat::IEEE_FP32:
    case DataFormat::SENINT8:
    case DataFormat::SENINT16:
    case DataFormat::IEEE_INT32:
    case DataFormat::SENUINT32:
      return true;
    default:
      return false;
  }
}

// Does every iteration write memory of its own? Sufficient, not necessary: the dimensions nest.
bool writes_once(const CoreStep& step) {
  const CoreOperand& output = step.output();
  struct Way {
    int64_t stride, extent;
  };
  std::array<Way, kStepRank + 1> ways{};
  int count = 0;
  for (int dim = 0; dim < step.record->rank; ++dim) {
    if (step.extent[dim] > 1) {
      ways[count++] = {std::abs(output.record->stride[dim]), step.extent[dim]};
    }
  }
  if (output.tiles > 1) ways[count++] = {std::abs(output.record->tile_stride), output.tiles};
  std::sort(ways.begin(), ways.begin() + count,
            [](const Way& a, const Way& b) { return a.stride < b.stride; });
  int64_t covered = kStickBytes;
  for (int i = 0; i < count; ++i) {
    if (ways[i].stride < covered) return false;
    covered += ways[i].stride * (ways[i].extent - 1);
  }
  return true;
}

// Can the step's result be words? Not if later iterations overwrite it before it is read, nor if
// it has bits that words don't.
bool fits_chain(const CoreStep& step) {
  return writes_once(step) && (!is_stick_copy(step) || is_exact(format_of(*step.output().record)));
}

// The same memory at every iteration.
bool is_same_walk(const CoreStep& step, const CoreOperand& a, const CoreOperand& b) {
  const OperandRecord& left = *a.record;
  const OperandRecord& right = *b.record;
  if (a.address != b.address || left.format != right.format || left.lanes != right.lanes ||
      left.tail_tiles != right.tail_tiles || a.tiles != b.tiles ||
      (a.tiles > 1 && left.tile_stride != right.tile_stride)) {
    return false;
  }
  for (int dim = 0; dim < step.record->rank; ++dim) {
    if (step.extent[dim] > 1 && left.stride[dim] != right.stride[dim]) return false;
  }
  return true;
}

Strides strides_of(const CoreOperand& operand) {
  const auto space = static_cast<Space>(operand.record->space);
  Strides strides{};
  if (space != Space::Scalar && space != Space::Constant) {
    std::copy(std::begin(operand.record->stride), std::end(operand.record->stride),
              strides.begin());
  }
  return strides;
}

// Some steps of a chain on one core, or on a slice of one, without a tail or nothing but the tail.
class ChainRun {
 public:
  // Takes the first of the steps, as many as it has room for. If that is not all of them, discarded
  // results are stored, for the others may read them; so is that of a step on its own.
  ChainRun(std::span<const CoreStep> steps, bool is_tail) : first_(steps[0]) {
    for (const CoreStep& step : steps) {
      const bool has_room = values_ + step.operands() <= kMaxValues;
      if (!has_room || instructions_ == kMaxValues) break;
      add(step);
    }
    const bool is_whole = taken() == steps.size();
    for (int i = 0; i < instructions_; ++i) {
      const bool is_discarded = (instruction_[i].step->record->flags & kDiscarded) != 0;
      const bool is_last = i == instructions_ - 1;
      value_[instruction_[i].out].is_stored = !is_discarded || !is_whole || is_last;
    }
    make_streams(is_tail);
    choose_direct();
    assign_rows();
  }

  size_t taken() const { return static_cast<size_t>(instructions_); }

  void run() {
    if (instructions_ == 1 && is_stick_copy(first_)) {
      copy_sticks();
    } else {
      compute();
    }
  }

 private:
  // ---- Planning --------------------------------------------------------------------------------

  void add(const CoreStep& step) {
    const int inputs = step.record->inputs;
    Instruction& instruction = instruction_[instructions_];
    instruction.step = &step;
    instruction.loaded = values_;
    for (int i = 0; i < inputs; ++i) {
      int value = find(step.operand[i]);
      if (value < 0) value = add_value(step.operand[i], false);
      value_[value].last_use = instructions_;
      instruction.in[i] = value;
    }
    instruction.out = add_value(step.output(), true);
    ++instructions_;
  }

  int add_value(const CoreOperand& operand, bool is_result) {
    value_[values_] = {&operand, {}, 0, instructions_, is_result, false, false, false, false};
    return values_++;
  }

  // The value that stands for an operand's memory: the latest, for a later one replaces those
  // before it.
  int find(const CoreOperand& operand) const {
    if (!is_in_memory(*operand.record)) return -1;
    for (int i = values_ - 1; i >= 0; --i) {
      if (is_in_memory(*value_[i].operand->record) &&
          is_same_walk(first_, *value_[i].operand, operand)) {
        return i;
      }
    }
    return -1;
  }

  void make_streams(bool is_tail) {
    std::array<Strides, kMaxValues> walks;
    for (int i = 0; i < values_; ++i) {
      const bool is_walked = !value_[i].is_result || value_[i].is_stored;
      walks[i] = is_walked ? strides_of(*value_[i].operand) : Strides{};
    }
    const auto leader = static_cast<size_t>(values_ - 1);  // the last result: it is always stored
    space_ = collapse({first_.extent.data(), first_.record->rank},
                      {walks.data(), static_cast<size_t>(values_)}, leader);
    for (int i = 0; i < values_; ++i) {
      Value& value = value_[i];
      value.stream = Stream(*value.operand, first_.lanes, space_, i, value.is_result, is_tail);
      value.is_invariant = !value.is_result && value.stream.shape() == Shape::Invariant;
    }
    for (int i = 0; i < instructions_; ++i) {
      const Instruction& instruction = instruction_[i];
      value_[instruction.out].is_invariant = std::all_of(
          instruction.in.begin(), instruction.in.begin() + instruction.step->record->inputs,
          [&](int value) { return value_[value].is_invariant; });
    }
  }

  // Which steps go from stored operands to a stored result, or to rounded words.
  void choose_direct() {
    for (int i = 0; i < instructions_; ++i) {
      Instruction& instruction = instruction_[i];
      const Value& result = value_[instruction.out];
      instruction.direct = nullptr;
      instruction.results = nullptr;
      if (result.is_invariant || !result.stream.is_direct(true)) continue;
      instruction.direct = kernels::table().direct[instruction.step->record->opcode];
      if (is_sen169(*value_[instruction.in[0]].operand)) {
        instruction.results = results_of(static_cast<Opcode>(instruction.step->record->opcode));
      }
      if (!instruction.is_direct()) continue;
      for (int k = instruction.loaded; k < instruction.out; ++k) {
        value_[k].is_direct = value_[k].last_use == i && value_[k].stream.is_direct(false);
      }
    }
    for (int i = 0; i < instructions_; ++i) {
      Value& result = value_[instruction_[i].out];
      result.is_coded = instruction_[i].is_direct() && !result.is_stored && result.last_use > i &&
                        only_tables_read(instruction_[i].out);
    }
  }

  bool only_tables_read(int value) const {
    return std::all_of(
        instruction_.begin(), instruction_.begin() + instructions_, [&](const Instruction& reader) {
          const auto end = reader.in.begin() + reader.step->record->inputs;
          return reader.results != nullptr || std::find(reader.in.begin(), end, value) == end;
        });
  }

  // Rows of words are used again when their value has been read for the last time.
  void assign_rows() {
    std::array<int, kMaxValues> free{};
    int freed = 0;
    int rows = 0;
    const auto take = [&] { return freed > 0 ? free[--freed] : rows++; };
    const auto keeps = [&](const Value& value) {
      return value.is_invariant || (!value.is_result && value.stream.keeps_words());
    };
    for (int i = 0; i < values_; ++i) {
      if (keeps(value_[i])) value_[i].row = rows++;
    }
    for (int i = 0; i < instructions_; ++i) {
      const Instruction& instruction = instruction_[i];
      for (int k = instruction.loaded; k < instruction.out; ++k) {
        if (!keeps(value_[k])) value_[k].row = take();
      }
      Value& result = value_[instruction.out];
      const auto give_back = [&](bool is_after) {
        for (int k = 0; k < instruction.out; ++k) {
          const bool outgrows = value_[k].is_coded && !result.is_coded;
          const bool is_over = value_[k].last_use == i && !keeps(value_[k]);
          if (is_over && outgrows == is_after) free[freed++] = value_[k].row;
        }
      };
      // Operations may write over what they read, unless words would outrun the sticks.
      give_back(false);
      if (!keeps(result)) {
        result.row = take();
        if (result.last_use == i) free[freed++] = result.row;
      }
      give_back(true);
    }
  }

  // ---- Copies that keep the format: whole sticks, no widening -----------------------------------

  void copy_sticks() {
    Blocks blocks(space_, values_, std::numeric_limits<int64_t>::max());
    const Stream& target = value_[instruction_[0].out].stream;
    for (Block block; blocks.next(block);) value_[0].stream.copy_to(target, block);
  }

  // ---- Everything else: widen, compute, narrow --------------------------------------------------

  void compute() {
    const int64_t block_iterations =
        std::min<int64_t>(kBlockElements / first_.lanes, first_.iterations());
    for (int i = 0; i < values_; ++i) {
      if (value_[i].is_invariant && !value_[i].is_result) {
        value_[i].stream.fill(words(i), block_iterations);
      }
    }
    for (int i = 0; i < instructions_; ++i) {
      if (value_[instruction_[i].out].is_invariant) {
        apply(instruction_[i], block_iterations);
        round(i, block_iterations);  // rounding once more when it is stored changes nothing
      }
    }
    Blocks blocks(space_, values_, block_iterations);
    for (Block block; blocks.next(block);) {
      for (int i = 0; i < instructions_; ++i) run_block(i, block);
    }
    for (int i = 0; i < instructions_; ++i) {
      if (instruction_[i].direct != nullptr && value_[instruction_[i].out].operand->is_streamed) {
        kernels::table().fence();
      }
    }
  }

  void run_block(int index, const Block& block) {
    const Instruction& instruction = instruction_[index];
    Value& result = value_[instruction.out];
    for (int i = instruction.loaded; i < instruction.out && !result.is_invariant; ++i) {
      if (!value_[i].is_direct) value_[i].stream.load(block, words(i));
    }
    if (instruction.is_direct()) {
      run_direct(index, block);
      return;
    }
    if (!result.is_invariant) apply(instruction, block.iterations);
    if (result.is_stored) result.stream.store(block, words(instruction.out));
    if (!result.is_invariant) round(index, block.iterations);
  }

  void run_direct(int index, const Block& block) {
    const Instruction& instruction = instruction_[index];
    const Value& result = value_[instruction.out];
    const bool is_read = result.last_use > index;
    if (!is_read && !result.is_stored) return;
    const int lanes = first_.lanes;
    int64_t done = 0;
    for (int s = 0; s < block.segments; ++s) {
      const Segment& segment = block.segment[s];
      kernels::DirectSticks sticks{};
      for (int i = 0; i < instruction.step->record->inputs; ++i) {
        const Value& value = value_[instruction.in[i]];
        sticks.in[i] = value.is_direct ? value.stream.direct_input(segment)
                                       : row_input(instruction.in[i], done);
      }
      sticks.count = segment.count;
      if (result.is_coded) {
        sticks.stored = coded(instruction.out, done);
        sticks.stride = kStickBytes;
      } else if (is_read) {
        sticks.words = words(instruction.out) + done * lanes;
      }
      if (result.is_stored) {
        sticks.stored = result.stream.place(segment);
        sticks.stride = result.stream.run_stride();
        sticks.is_streamed = result.operand->is_streamed;
      }
      if (instruction.results != nullptr) {
        look_up(instruction.results, sticks);
      } else {
        instruction.direct(sticks);
      }
      done += segment.count;
    }
  }

  // Iterations of a block from `first` on; one is enough of those that are all the same.
  kernels::DirectInput row_input(int value, int64_t first) {
    if (value_[value].is_coded) {
      return {kernels::DirectInput::Kind::Stick, coded(value, first), kStickBytes};
    }
    const auto at = value_[value].is_invariant ? 0 : first * first_.lanes;
    const int64_t stride = first_.lanes * static_cast<int64_t>(sizeof(Word));
    return {kernels::DirectInput::Kind::Words,
            reinterpret_cast<const std::byte*>(words(value) + at),
            value_[value].is_invariant ? 0 : stride};
  }

  // For the steps that read it.
  void round(int index, int64_t iterations) {
    const Value& result = value_[instruction_[index].out];
    if (result.last_use > index) result.stream.round(words(instruction_[index].out), iterations);
  }

  void apply(const Instruction& instruction, int64_t iterations) {
    const bool is_in_place = words(instruction.in[0]) == words(instruction.out);
    if (is_in_place && is_identity(*instruction.step->record)) return;
    std::array<const Word*, kMaxInputs> in{};
    for (int i = 0; i < instruction.step->record->inputs; ++i) in[i] = words(instruction.in[i]);
    kernels::table().pointwise[instruction.step->record->opcode](in.data(), words(instruction.out),
                                                                 iterations * first_.lanes);
  }

  Word* words(int value) { return words_[value_[value].row].data(); }
  std::byte* coded(int value, int64_t stick) {
    return reinterpret_cast<std::byte*>(words(value)) + stick * kStickBytes;
  }

  const CoreStep& first_;
  int instructions_ = 0;
  int values_ = 0;
  IterationSpace space_;
  std::array<Instruction, kMaxValues> instruction_;
  std::array<Value, kMaxValues> value_;
  // Left uninitialised: every word is written before it is read.
  alignas(64) std::array<std::array<Word, kBlockElements>, kMaxValues> words_;
};

void run_pieces(std::span<const CoreStep> steps, bool is_tail) {
  while (!steps.empty()) {
    ChainRun piece(steps, is_tail);
    piece.run();
    steps = steps.subspan(piece.taken());
  }
}

void run_with_tail(std::span<const CoreStep> steps) {
  const CoreStep& first = steps[0];
  if (std::none_of(steps.begin(), steps.end(), [](const CoreStep& step) { return step.is_tail; })) {
    run_pieces(steps, false);
    return;
  }
  const int dim = first.record->stick_dim;
  const int64_t last = first.extent[dim] - 1;
  std::vector<CoreStep> slices;
  const auto run_slice = [&](int64_t begin, int64_t end, bool is_tail) {
    slices.clear();
    for (const CoreStep& step : steps) slices.push_back(slice_step(step, dim, begin, end));
    run_pieces(slices, is_tail);
  };
  if (last > 0) run_slice(0, last, false);
  run_slice(last, last + 1, true);
}

}  // namespace

bool is_stick_copy(const CoreStep& step) {
  const OperandRecord& from = *step.operand[0].record;
  return (is_kind(*step.record, StepKind::Pointwise) || is_relayout(*step.record)) &&
         is_identity(*step.record) && is_in_memory(from) && lanes_of(from) == Lanes::Vector &&
         from.format == step.output().record->format;
}

void run_chain(std::span<const CoreStep> steps) {
  if (steps.size() == 1 || std::all_of(steps.begin(), steps.end(), fits_chain)) {
    run_with_tail(steps);
    return;
  }
  for (const CoreStep& step : steps) run_with_tail({&step, 1});
}

int slice_dimension(std::span<const CoreStep> steps) {
  if (steps.size() == 1) return slice_dimension(steps[0]);
  // Iterations that write memory of their own may go to threads in any way.
  return std::all_of(steps.begin(), steps.end(), writes_once) ? slice_dimension(steps.back()) : -1;
}

void run_pointwise(const CoreStep& step) { run_chain({&step, 1}); }

}  // namespace spyre
