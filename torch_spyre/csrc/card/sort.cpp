// Argsort steps: the stable order of the elements of each row.
//
// An element becomes a 32-bit key whose order as an unsigned number is the wanted one, with its
// position below it: such words are all different, and sorted they keep equal elements in their
// order. Long rows are sorted digit by digit, short ones by comparison.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "rows.h"
#include "step.h"

namespace spyre {
namespace {

using kernels::kBlockElements;
using kernels::Word;

constexpr int kDigitBits = 8;
constexpr size_t kDigits = size_t{1} << kDigitBits;
constexpr int64_t kLongRow = 1024;  // from here on digits are faster than comparisons

// NaN is the largest, whatever its sign; zeros are equal.
Word float_key(Word word) {
  constexpr Word kSign = 0x80000000, kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
  const Word magnitude = word & kMagnitude;
  if (magnitude > kInfinity) return 0xFFFFFFFF;
  if (magnitude == 0) return kSign;
  return (word & kSign) != 0 ? ~word : word | kSign;
}
Word int_key(Word word) { return word ^ 0x80000000; }

class ArgsortRun {
 public:
  explicit ArgsortRun(const CoreStep& step)
      : from_(*step.operand[0].record),
        length_(step.extent[row_dimension(*step.record)]),
        load_(kernels::table().load[from_.format]),
        keyed_(static_cast<size_t>(length_)),
        other_(length_ >= kLongRow ? keyed_.size() : 0) {
    const auto opcode = static_cast<Opcode>(step.record->opcode);
    is_float_ = opcode == Opcode::argsort || opcode == Opcode::argsort_descending;
    is_descending_ =
        opcode == Opcode::argsort_descending || opcode == Opcode::argsort_int_descending;
  }

  void sort(const Row& row) {
    make_keys(row);
    if (length_ >= kLongRow) {
      sort_by_digits();
    } else {
      std::sort(keyed_.begin(), keyed_.end());
    }
    for (int64_t i = 0; i < length_; ++i) {
      const auto position = static_cast<uint32_t>(keyed_[i]);
      std::memcpy(row.to + i * row.to_stride, &position, sizeof(position));
    }
  }

 private:
  void make_keys(const Row& row) {
    const int bytes = element_bytes(format_of(from_));
    for (int64_t first = 0; first < length_; first += kBlockElements) {
      const int64_t count = std::min(kBlockElements, length_ - first);
      kernels::table().move_tile(bytes, row.from + first * row.from_stride, 0, row.from_stride,
                                 bytes_.data(), 0, bytes, 1, count);
      load_(bytes_.data(), words_.data(), count);
      for (int64_t i = 0; i < count; ++i) {
        const Word key = is_float_ ? float_key(words_[i]) : int_key(words_[i]);
        keyed_[first + i] = uint64_t{is_descending_ ? ~key : key} << 32 | (first + i);
      }
    }
  }

  // From the lowest digit of the key to its highest; positions are in order to begin with. A digit
  // that all elements have in common changes nothing: narrow formats leave some.
  void sort_by_digits() {
    for (int shift = 32; shift < 64; shift += kDigitBits) {
      std::array<size_t, kDigits> place{};
      for (const uint64_t word : keyed_) ++place[word >> shift & (kDigits - 1)];
      if (place[keyed_.front() >> shift & (kDigits - 1)] == keyed_.size()) continue;
      size_t before = 0;
      for (size_t& count : place) {
        const size_t own = count;
        count = before;
        before += own;
      }
      for (const uint64_t word : keyed_) other_[place[word >> shift & (kDigits - 1)]++] = word;
      keyed_.swap(other_);
    }
  }

  const OperandRecord& from_;
  const int64_t length_;
  const kernels::Load load_;
  bool is_float_ = false, is_descending_ = false;
  std::vector<uint64_t> keyed_, other_;
  alignas(64) std::array<Word, kBlockElements> words_;
  alignas(64) std::array<std::byte, kBlockElements * sizeof(Word)> bytes_;
};

}  // namespace

void run_argsort(const CoreStep& step) {
  ArgsortRun run(step);
  for_each_row(step, [&](const Row& row) { run.sort(row); });
}

}  // namespace spyre
