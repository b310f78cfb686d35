// Operands for the tests of the vector code, and a way to run one operation on them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "../../torch_spyre/csrc/card/kernels.h"

namespace spyre::kernels {

using Words = std::vector<Word>;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline float as_float(Word word) { return std::bit_cast<float>(word); }
inline Word as_word(float value) { return std::bit_cast<Word>(value); }

inline Words run(Opcode opcode, const std::vector<Words>& operands) {
  std::vector<const Word*> in;
  for (const Words& operand : operands) in.push_back(operand.data());
  Words out(operands[0].size());
  table().pointwise[static_cast<size_t>(opcode)](in.data(), out.data(),
                                                 static_cast<int64_t>(out.size()));
  return out;
}

inline float run_float(Opcode opcode, std::initializer_list<float> operands) {
  std::vector<Words> in;
  for (const float operand : operands) in.push_back({as_word(operand)});
  return as_float(run(opcode, in)[0]);
}

inline int32_t run_int(Opcode opcode, std::initializer_list<int32_t> operands) {
  std::vector<Words> in;
  for (const int32_t operand : operands) in.push_back({static_cast<Word>(operand)});
  return static_cast<int32_t>(run(opcode, in)[0]);
}

inline bool same(float a, float b) {  // equal, the sign of zero included, or both NaN
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

inline const std::vector<float> kSpecial{
    0.0f,       -0.0f,        1.0f,        -1.0f,        0.5f,          -0.5f,          2.0f,
    -2.0f,      3.0f,         -3.0f,       1.5f,         2.5f,          -2.5f,          kInf,
    -kInf,      kNan,         1e-45f,      -1e-45f,      1e-40f,        1.2e-38f,       3.4e38f,
    -3.4e38f,   88.722f,      88.73f,      -87.33f,      -103.9f,       -104.1f,        127.9f,
    128.0f,     -149.0f,      -150.1f,     20.0f,        -20.0f,        0.1f,           1e-8f,
    -1e-8f,     16777216.0f,  16777217.0f, -33554432.0f, 1048576.0f,    1048577.0f,     1.5707964f,
    3.1415927f, 6.2831855f,   1e10f,       -1e20f,       2147483648.0f, -2147483648.0f, 0.99999994f,
    1.0000001f, -0.99999994f, -14.2f,      -10.0f,       5.0f,          -5.0f,          9.0f,
    0.34657f,   -0.34657f,    1e30f};

// Every pair of special values in two aligned arrays, then random words: all bit patterns, and
// numbers of everyday size.
inline std::vector<Words> operands_of(int count, int random_words, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Words> all(static_cast<size_t>(count));
  for (size_t i = 0; i < kSpecial.size(); ++i) {
    for (size_t j = 0; j < kSpecial.size(); ++j) {
      for (size_t k = 0; k < all.size(); ++k) {
        const size_t at = k == 0 ? i : k == 1 ? j : (i + j * k) % kSpecial.size();
        all[k].push_back(as_word(kSpecial[at]));
      }
    }
  }
  std::normal_distribution<float> normal(0, 10);
  for (int i = 0; i < random_words; ++i) {
    for (Words& words : all) {
      words.push_back(i % 2 == 0 ? static_cast<Word>(random()) : as_word(normal(random)));
    }
  }
  return all;
}

}  // namespace spyre::kernels
