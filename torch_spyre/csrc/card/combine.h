// What Scatter and Scan steps do with two numbers, one pair at a time: the bits are those of the
// pointwise operations.
#pragma once

#include <bit>
#include <cmath>

#include "kernels.h"

namespace spyre {

using kernels::Word;

// What is computed has one NaN.
inline Word one_nan(Word word) {
  constexpr Word kNan = 0x7FC00000, kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
  return (word & kMagnitude) > kInfinity ? kNan : word;
}

// `next` takes in an element; of floats, `finish` follows where a result is stored.
struct FloatResult {
  static Word finish(Word word) { return one_nan(word); }
};
struct IntResult {
  static Word finish(Word word) { return word; }
};

struct Sum : FloatResult {
  static constexpr Word kStart = 0;
  static Word next(Word a, Word b) {
    return std::bit_cast<Word>(std::bit_cast<float>(a) + std::bit_cast<float>(b));
  }
};
struct Product : FloatResult {
  static constexpr Word kStart = std::bit_cast<Word>(1.0F);
  static Word next(Word a, Word b) {
    return std::bit_cast<Word>(std::bit_cast<float>(a) * std::bit_cast<float>(b));
  }
};
// NaN wins; of equal numbers the second.
struct Largest : FloatResult {
  static Word next(Word a, Word b) {
    const auto x = std::bit_cast<float>(a), y = std::bit_cast<float>(b);
    return x > y || std::isnan(x) ? a : b;
  }
};
struct Smallest : FloatResult {
  static Word next(Word a, Word b) {
    const auto x = std::bit_cast<float>(a), y = std::bit_cast<float>(b);
    return x < y || std::isnan(x) ? a : b;
  }
};
// Unsigned: sums and products wrap.
struct SumInt : IntResult {
  static constexpr Word kStart = 0;
  static Word next(Word a, Word b) { return a + b; }
};
struct ProductInt : IntResult {
  static constexpr Word kStart = 1;
  static Word next(Word a, Word b) { return a * b; }
};
struct LargestInt : IntResult {
  static Word next(Word a, Word b) {
    return static_cast<int32_t>(a) > static_cast<int32_t>(b) ? a : b;
  }
};
struct SmallestInt : IntResult {
  static Word next(Word a, Word b) {
    return static_cast<int32_t>(a) < static_cast<int32_t>(b) ? a : b;
  }
};

}  // namespace spyre
