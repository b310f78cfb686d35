#include "distributed/reduction.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "card/kernels.h"
#include "card/threads.h"

namespace spyre::distributed {
namespace {

using kernels::kBlockElements;
using kernels::Word;
using Block = std::array<Word, kBlockElements>;

bool is_float(DataFormat format) { return format_info(format).domain == Domain::Float; }

float as_float(Word word) { return std::bit_cast<float>(word); }
Word as_word(float value) { return std::bit_cast<Word>(value); }
int32_t as_int(Word word) { return std::bit_cast<int32_t>(word); }
Word as_word(int32_t value) { return std::bit_cast<Word>(value); }

// NaN wins, as in PyTorch.
float smaller(float a, float b) { return std::isnan(a) || a < b ? a : b; }
float larger(float a, float b) { return std::isnan(a) || a > b ? a : b; }

template <typename Combine>
void each(Word* words, const Word* others, int64_t n, Combine combine) {
  for (int64_t i = 0; i < n; ++i) words[i] = combine(words[i], others[i]);
}

void combine_floats(Reduction what, Word* a, const Word* b, int64_t n) {
  switch (what) {
    case Reduction::Product:
      return each(a, b, n, [](Word x, Word y) { return as_word(as_float(x) * as_float(y)); });
    case Reduction::Min:
      return each(a, b, n,
                  [](Word x, Word y) { return as_word(smaller(as_float(x), as_float(y))); });
    case Reduction::Max:
      return each(a, b, n,
                  [](Word x, Word y) { return as_word(larger(as_float(x), as_float(y))); });
    default:
      return each(a, b, n, [](Word x, Word y) { return as_word(as_float(x) + as_float(y)); });
  }
}

void combine_integers(Reduction what, Word* a, const Word* b, int64_t n) {
  switch (what) {
    case Reduction::Product:
      return each(a, b, n, [](Word x, Word y) { return x * y; });
    case Reduction::Min:
      return each(a, b, n, [](Word x, Word y) { return as_word(std::min(as_int(x), as_int(y))); });
    case Reduction::Max:
      return each(a, b, n, [](Word x, Word y) { return as_word(std::max(as_int(x), as_int(y))); });
    case Reduction::And:
      return each(a, b, n, [](Word x, Word y) { return x & y; });
    case Reduction::Or:
      return each(a, b, n, [](Word x, Word y) { return x | y; });
    case Reduction::Xor:
      return each(a, b, n, [](Word x, Word y) { return x ^ y; });
    default:
      return each(a, b, n, [](Word x, Word y) { return x + y; });  // wraps
  }
}

// True is 1.0: "or" is the larger one, "and" the smaller one, "xor" tells whether they differ.
void combine_truths(Reduction what, Word* a, const Word* b, int64_t n) {
  switch (what) {
    case Reduction::Product:
    case Reduction::Min:
    case Reduction::And:
      return combine_floats(Reduction::Min, a, b, n);
    case Reduction::Xor:
      return each(a, b, n,
                  [](Word x, Word y) { return as_word(as_float(x) != as_float(y) ? 1.0F : 0.0F); });
    default:
      return combine_floats(Reduction::Max, a, b, n);
  }
}

void divide(Word* words, int64_t n, float by) {
  for (int64_t i = 0; i < n; ++i) words[i] = as_word(as_float(words[i]) / by);
}

// An average is within the range of its numbers; their sum need not be.
template <typename Load>
void average_integers(std::span<const std::byte* const> inputs, int64_t offset, int64_t n,
                      Load load, Word* words) {
  std::array<int64_t, kBlockElements> sums{};
  for (const std::byte* input : inputs) {
    load(input + offset, words, n);
    for (int64_t i = 0; i < n; ++i) sums[i] += as_int(words[i]);
  }
  const auto ranks = static_cast<int64_t>(inputs.size());
  for (int64_t i = 0; i < n; ++i) words[i] = as_word(static_cast<int32_t>(sums[i] / ranks));
}

void keep_bytes(Word* words, int64_t n) {
  for (int64_t i = 0; i < n; ++i) words[i] &= 0xFF;
}

}  // namespace

std::string why_not(Reduction what, DataFormat format, Meaning meaning) {
  const bool is_bitwise = what == Reduction::And || what == Reduction::Or || what == Reduction::Xor;
  if (meaning == Meaning::Truth) {
    return what == Reduction::Average ? "there is no average of bool" : "";
  }
  return is_bitwise && is_float(format) ? "bitwise reductions are for integers and bool" : "";
}

void reduce(Reduction what, DataFormat format, Meaning meaning,
            std::span<const std::byte* const> inputs, int64_t n, std::byte* out) {
  const CardArithmetic arithmetic;
  const auto load = kernels::table().load[static_cast<size_t>(format)];
  const auto store = kernels::table().store[static_cast<size_t>(format)];
  const int64_t bytes = element_bytes(format);
  Block words;
  Block others;
  for (int64_t first = 0; first < n; first += kBlockElements) {
    const int64_t count = std::min(kBlockElements, n - first);
    if (what == Reduction::Average && !is_float(format)) {
      average_integers(inputs, first * bytes, count, load, words.data());
      store(words.data(), out + first * bytes, count);
      continue;
    }
    load(inputs[0] + first * bytes, words.data(), count);
    for (const std::byte* input : inputs.subspan(1)) {
      load(input + first * bytes, others.data(), count);
      if (meaning == Meaning::Truth) {
        combine_truths(what, words.data(), others.data(), count);
      } else if (is_float(format)) {
        combine_floats(what, words.data(), others.data(), count);
      } else {
        combine_integers(what, words.data(), others.data(), count);
      }
    }
    if (meaning == Meaning::Byte) keep_bytes(words.data(), count);
    if (what == Reduction::Average) {
      divide(words.data(), count, static_cast<float>(inputs.size()));
    }
    store(words.data(), out + first * bytes, count);
  }
}

}  // namespace spyre::distributed
