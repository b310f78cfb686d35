// The pointwise operations: accuracy against long double, and the rules of fp32 and int32.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "operands.h"

using namespace spyre;
using namespace spyre::kernels;

namespace {

float truth(bool value) { return value ? 1.0f : 0.0f; }

// Distance in units of the last place of fp32.
double ulps(float got, long double wanted) {
  if (std::isnan(wanted)) return std::isnan(got) ? 0 : 1e30;
  constexpr long double kLargest = 0x1.ffffffp127L;  // half a unit beyond the largest float
  if (std::abs(wanted) >= kLargest) return got == std::copysign(kInf, wanted) ? 0 : 1e30;
  if (!std::isfinite(got)) return 1e30;
  const int exponent = wanted == 0 ? -126 : std::max(-126, std::ilogb(wanted));
  return static_cast<double>(std::abs(got - wanted) / std::ldexp(1.0L, exponent - 23));
}

// Arguments for a function of one operand: random patterns, a sweep of [low, high], specials.
Words arguments(float low, float high) {
  Words words = operands_of(1, 100000, 11)[0];
  std::mt19937 random(5);
  std::uniform_real_distribution<float> sweep(low, high);
  for (int i = 0; i < 100000; ++i) words.push_back(as_word(sweep(random)));
  return words;
}

template <typename Reference>
void check_accuracy(Opcode opcode, double bound, const Words& in, Reference reference) {
  const Words out = run(opcode, {in});
  double worst = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const float x = as_float(in[i]);
    const double error = ulps(as_float(out[i]), reference(static_cast<long double>(x)));
    worst = std::max(worst, error);
    if (error > bound) {
      check::fail(__FILE__, __LINE__,
                  std::string(opcode_info(static_cast<uint16_t>(opcode)).name) + "(" +
                      check::show(x) + ") = " + check::show(as_float(out[i])) + ", off by " +
                      check::show(error));
    }
  }
}

long double sigmoid(long double x) { return 1 / (1 + std::exp(-x)); }
const long double kSqrtHalf = std::sqrt(0.5L);

}  // namespace

TEST(transcendentals_stay_within_two_units_of_the_last_place_over_all_floats) {
  using L = long double;
  const double bound = 2;
  const Words wide = arguments(-110, 110);
  const Words narrow = arguments(-12, 12);
  const Words positive = arguments(0, 100);
  const Words near_one = arguments(0.5, 1.5);
  const Words unit = arguments(-1, 1);
  check_accuracy(Opcode::exp, bound, wide, [](L x) { return std::exp(x); });
  check_accuracy(Opcode::exp2, bound, arguments(-155, 135), [](L x) { return std::exp2(x); });
  check_accuracy(Opcode::expm1, bound, wide, [](L x) { return std::expm1(x); });
  check_accuracy(Opcode::expm1, bound, unit, [](L x) { return std::expm1(x); });
  for (const Words& in : {positive, near_one}) {
    check_accuracy(Opcode::log, bound, in, [](L x) { return std::log(x); });
    check_accuracy(Opcode::log2, bound, in, [](L x) { return std::log2(x); });
    check_accuracy(Opcode::log10, bound, in, [](L x) { return std::log10(x); });
    check_accuracy(Opcode::rsqrt, 1, in, [](L x) { return 1 / std::sqrt(x); });
  }
  check_accuracy(Opcode::log1p, bound, positive, [](L x) { return std::log1p(x); });
  check_accuracy(Opcode::log1p, bound, unit, [](L x) { return std::log1p(x); });
  check_accuracy(Opcode::tanh, bound, narrow, [](L x) { return std::tanh(x); });
  check_accuracy(Opcode::sigmoid, bound, wide, sigmoid);
  for (const Words& in : {narrow, unit}) {
    check_accuracy(Opcode::erf, bound, in, [](L x) { return std::erf(x); });
  }
  check_accuracy(Opcode::sin, bound, narrow, [](L x) { return std::sin(x); });
  check_accuracy(Opcode::cos, bound, narrow, [](L x) { return std::cos(x); });
  check_accuracy(Opcode::sin, bound, arguments(-2e6f, 2e6f), [](L x) { return std::sin(x); });
  check_accuracy(Opcode::cos, bound, arguments(-2e6f, 2e6f), [](L x) { return std::cos(x); });
}

TEST(activations_stay_within_two_units_of_the_last_place_over_all_floats) {
  using L = long double;
  // As in PyTorch, these are NaN at -inf, where the formula is -inf times zero.
  const auto or_nan = [](auto formula) {
    return [formula](L x) { return x == -kInf ? L{kNan} : formula(x); };
  };
  const Words in = arguments(-16, 16);
  const Words wide = arguments(-110, 110);
  const auto gelu = [](L x) { return 0.5L * x * std::erfc(-x * kSqrtHalf); };
  const auto silu = [](L x) { return x == kInf ? x : x / (1 + std::exp(-x)); };
  const auto gelu_tanh = [](L x) {
    const L u = std::sqrt(2 / 3.14159265358979323846264338327950288L) * (x + 0.044715L * x * x * x);
    return x / (1 + std::exp(-2 * u));
  };
  check_accuracy(Opcode::gelu, 2, in, or_nan(gelu));
  check_accuracy(Opcode::gelu_tanh, 2, in, or_nan(gelu_tanh));
  check_accuracy(Opcode::silu, 2, wide, or_nan(silu));

  const size_t n = wide.size();
  const Words softplus =
      run(Opcode::softplus, {wide, Words(n, as_word(1.0f)), Words(n, as_word(20.0f))});
  const Words elu = run(Opcode::elu, {wide, Words(n, as_word(1.5f)), Words(n, as_word(2.0f)),
                                      Words(n, as_word(0.5f))});
  for (size_t i = 0; i < n; ++i) {
    const L x = as_float(wide[i]);
    CHECK(ulps(as_float(softplus[i]), x > 20 ? x : std::log1p(std::exp(x))) <= 2);
    CHECK(ulps(as_float(elu[i]), x < 0 ? 3 * std::expm1(L{as_float(wide[i]) * 0.5f}) : 2 * x) <= 2);
  }
}

TEST(pow_and_atan2_stay_within_two_units_and_have_all_special_cases_of_c) {
  std::vector<Words> in = operands_of(2, 100000, 77);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-30, 30), y(-8, 8);
  for (int i = 0; i < 100000; ++i) {
    in[0].push_back(as_word(std::exp2(exponent(random))));
    in[1].push_back(as_word(i % 4 == 0 ? std::round(y(random)) : y(random)));
  }
  const Words power = run(Opcode::pow, in);
  const Words angle = run(Opcode::atan2, in);
  for (size_t i = 0; i < power.size(); ++i) {
    const float a = as_float(in[0][i]), b = as_float(in[1][i]);
    const long double wanted = std::pow(static_cast<long double>(a), static_cast<long double>(b));
    if (ulps(as_float(power[i]), wanted) > 2) {
      check::fail(__FILE__, __LINE__,
                  "pow(" + check::show(a) + ", " + check::show(b) +
                      ") = " + check::show(as_float(power[i])));
    }
    if (wanted == 0) CHECK_EQ(std::signbit(as_float(power[i])), std::signbit(wanted));
    const long double turn = std::atan2(static_cast<long double>(a), static_cast<long double>(b));
    CHECK(ulps(as_float(angle[i]), turn) <= 2);
    if (turn == 0) CHECK_EQ(std::signbit(as_float(angle[i])), std::signbit(turn));
  }
}

TEST(odd_functions_keep_the_sign_of_zero) {
  for (const Opcode opcode : {Opcode::sin, Opcode::tanh, Opcode::erf, Opcode::expm1, Opcode::log1p,
                              Opcode::gelu, Opcode::silu, Opcode::gelu_tanh, Opcode::sqrt,
                              Opcode::round, Opcode::trunc, Opcode::floor}) {
    CHECK(same(run_float(opcode, {-0.0f}), -0.0f));
    CHECK(same(run_float(opcode, {0.0f}), 0.0f));
  }
  CHECK(same(run_float(Opcode::rsqrt, {-0.0f}), -kInf));
}

TEST(arithmetic_is_that_of_fp32_with_one_nan) {
  const std::vector<Words> in = operands_of(4, 20000, 4);
  struct Case {
    Opcode opcode;
    float (*reference)(float, float, float, float);
  };
  const std::vector<Case> cases{
      {Opcode::add, [](float a, float b, float, float) { return a + b; }},
      {Opcode::sub, [](float a, float b, float, float) { return a - b; }},
      {Opcode::mul, [](float a, float b, float, float) { return a * b; }},
      {Opcode::div, [](float a, float b, float, float) { return a / b; }},
      {Opcode::sqrt, [](float a, float, float, float) { return std::sqrt(a); }},
      {Opcode::reciprocal, [](float a, float, float, float) { return 1 / a; }},
      {Opcode::square, [](float a, float, float, float) { return a * a; }},
      {Opcode::floor, [](float a, float, float, float) { return std::floor(a); }},
      {Opcode::ceil, [](float a, float, float, float) { return std::ceil(a); }},
      {Opcode::trunc, [](float a, float, float, float) { return std::trunc(a); }},
      {Opcode::round, [](float a, float, float, float) { return std::nearbyint(a); }},
      {Opcode::abs, [](float a, float, float, float) { return std::abs(a); }},
      {Opcode::neg, [](float a, float, float, float) { return -a; }},
      {Opcode::div_trunc, [](float a, float b, float, float) { return std::trunc(a / b); }},
      {Opcode::fmod, [](float a, float b, float, float) { return std::fmod(a, b); }},
      {Opcode::remainder,
       [](float a, float b, float, float) {
         const float mod = std::fmod(a, b);
         return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
       }},
      {Opcode::relu, [](float a, float, float, float) { return a < 0 ? 0 : a; }},
      {Opcode::leaky_relu, [](float a, float b, float, float) { return a > 0 ? a : a * b; }},
      {Opcode::where, [](float a, float b, float c, float) { return a != 0 ? b : c; }},
      {Opcode::eq, [](float a, float b, float, float) { return truth(a == b); }},
      {Opcode::ne, [](float a, float b, float, float) { return truth(a != b); }},
      {Opcode::lt, [](float a, float b, float, float) { return truth(a < b); }},
      {Opcode::ge, [](float a, float b, float, float) { return truth(a >= b); }},
      {Opcode::isnan, [](float a, float, float, float) { return truth(std::isnan(a)); }},
      {Opcode::isinf, [](float a, float, float, float) { return truth(std::isinf(a)); }},
      {Opcode::logical_xor,
       [](float a, float b, float, float) { return truth((a != 0) != (b != 0)); }},
  };
  for (const Case& c : cases) {
    const auto inputs = static_cast<long>(opcode_info(static_cast<uint16_t>(c.opcode)).inputs);
    const Words out = run(c.opcode, {in.begin(), in.begin() + inputs});
    for (size_t i = 0; i < out.size(); ++i) {
      const float wanted = c.reference(as_float(in[0][i]), as_float(in[1][i]), as_float(in[2][i]),
                                       as_float(in[3][i]));
      if (!same(as_float(out[i]), wanted)) {
        check::fail(__FILE__, __LINE__,
                    std::string(opcode_info(static_cast<uint16_t>(c.opcode)).name) + " of " +
                        check::show(as_float(in[0][i])) + ", " + check::show(as_float(in[1][i])) +
                        ": " + check::show(as_float(out[i])) + " != " + check::show(wanted));
      }
    }
  }
  CHECK_EQ(run(Opcode::add, {{as_word(kInf)}, {as_word(-kInf)}})[0], 0x7FC00000u);
  CHECK_EQ(run(Opcode::add, {{0xFFC12345u}, {0x7FC00001u}})[0], 0x7FC00000u);
}

TEST(scaled_operations_round_after_every_step) {
  const std::vector<Words> in = operands_of(4, 20000, 8);
  const Words scaled = run(Opcode::add_scaled, {in[0], in[1], in[2]});
  const Words product = run(Opcode::addcmul, in);
  for (size_t i = 0; i < scaled.size(); ++i) {
    const float a = as_float(in[0][i]), b = as_float(in[1][i]), c = as_float(in[2][i]),
                d = as_float(in[3][i]);
    volatile float bc = c * b;  // keeps the compiler from fusing the reference
    volatile float db = d * b;
    volatile float dbc = db * c;
    CHECK(same(as_float(scaled[i]), a + bc));
    CHECK(same(as_float(product[i]), a + dbc));
  }
}

TEST(maximum_minimum_and_clamp_propagate_nan) {
  CHECK(std::isnan(run_float(Opcode::maximum, {kNan, 1})));
  CHECK(std::isnan(run_float(Opcode::maximum, {1, kNan})));
  CHECK(std::isnan(run_float(Opcode::minimum, {1, kNan})));
  CHECK_EQ(run_float(Opcode::minimum, {-2, 1}), -2.0f);
  CHECK(std::isnan(run_float(Opcode::clamp, {kNan, 0, 1})));
  CHECK(std::isnan(run_float(Opcode::clamp, {0, kNan, 1})));
  CHECK(std::isnan(run_float(Opcode::clamp, {0, 0, kNan})));
  CHECK_EQ(run_float(Opcode::clamp, {5, 2, 1}), 1.0f);  // the upper bound is applied last
  CHECK_EQ(run_float(Opcode::sign, {kNan}), 0.0f);
  CHECK(std::isnan(run_float(Opcode::relu, {kNan})));
}

TEST(floor_division_follows_python) {
  struct Case {
    float a, b, wanted;
  };
  for (const Case& c : {Case{7, 2, 3}, Case{-7, 2, -4}, Case{7, -2, -4}, Case{-7, -2, 3},
                        Case{1, 0, kInf}, Case{-1, 0, -kInf}, Case{0, 0, kNan}, Case{1, kInf, 0},
                        Case{-1, kInf, -1}, Case{1, -kInf, -1}, Case{kInf, 2, kNan},
                        Case{1, 0.1f, 9}, Case{0.0f, -3, -0.0f}, Case{1e30f, 3, 3.3333333e29f}}) {
    CHECK(same(run_float(Opcode::div_floor, {c.a, c.b}), c.wanted));
  }
}

TEST(integer_operations_wrap_and_never_trap) {
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  std::mt19937 random(3);
  std::vector<int32_t> values{0, 1, -1, 2, -2, 3, 7, -7, 31, 32, 33, kMin, kMax, kMin + 1, 65536};
  for (int i = 0; i < 100; ++i) values.push_back(static_cast<int32_t>(random()) >> (i % 31));
  for (const int32_t a : values) {
    for (const int32_t b : values) {
      const int64_t x = a, y = b;
      CHECK_EQ(run_int(Opcode::add_int, {a, b}), static_cast<int32_t>(x + y));
      CHECK_EQ(run_int(Opcode::mul_int, {a, b}), static_cast<int32_t>(x * y));
      const int64_t q = y == 0 ? 0 : x / y;
      const int64_t mod = y == 0 ? 0 : x % y;
      const bool rounds_down = mod != 0 && (mod < 0) != (y < 0);
      CHECK_EQ(run_int(Opcode::div_trunc_int, {a, b}), static_cast<int32_t>(q));
      CHECK_EQ(run_int(Opcode::fmod_int, {a, b}), mod);
      CHECK_EQ(run_int(Opcode::div_floor_int, {a, b}), static_cast<int32_t>(q - rounds_down));
      CHECK_EQ(run_int(Opcode::remainder_int, {a, b}), mod + (rounds_down ? y : 0));
      CHECK_EQ(run_int(Opcode::shift_left, {a, b}),
               b < 0 || b >= 32 ? 0 : static_cast<int32_t>(static_cast<int64_t>(a) << b));
      CHECK_EQ(run_int(Opcode::shift_right, {a, b}), a >> (b < 0 || b > 31 ? 31 : b));
      CHECK_EQ(run_int(Opcode::maximum_int, {a, b}), std::max(a, b));
    }
  }
  CHECK_EQ(run_int(Opcode::abs_int, {kMin}), kMin);
  CHECK_EQ(run_int(Opcode::pow_int, {3, 4}), 81);
  CHECK_EQ(run_int(Opcode::pow_int, {2, 33}), 0);
  CHECK_EQ(run_int(Opcode::pow_int, {-3, 3}), -27);
  CHECK_EQ(run_int(Opcode::pow_int, {0, 0}), 1);
  CHECK_EQ(run_int(Opcode::pow_int, {1, -5}), 1);
  CHECK_EQ(run_int(Opcode::pow_int, {-1, -5}), -1);
  CHECK_EQ(run_int(Opcode::pow_int, {-1, -4}), 1);
  CHECK_EQ(run_int(Opcode::pow_int, {0, -1}), 0);
  CHECK_EQ(run_int(Opcode::pow_int, {2, -1}), 0);
}

TEST(float_to_int_truncates_and_saturates) {
  const auto convert = [](float f) {
    return static_cast<int32_t>(run(Opcode::float_to_int, {{as_word(f)}})[0]);
  };
  CHECK_EQ(convert(2.9f), 2);
  CHECK_EQ(convert(-2.9f), -2);
  CHECK_EQ(convert(3e9f), 2147483647);
  CHECK_EQ(convert(-kInf), std::numeric_limits<int32_t>::min());
  CHECK_EQ(convert(kNan), 0);
  CHECK_EQ(convert(2147483520.0f), 2147483520);
}

TEST(random_words_are_philox_and_its_known_answer) {
  // Random123's known-answer test: counter 0, key 0.
  CHECK_EQ(run(Opcode::random_bits, {{0}, {0}, {0}, {0}})[0], 0x6627e8d5u >> 1);
  const size_t n = 200000;
  Words index(n);
  for (size_t i = 0; i < n; ++i) index[i] = static_cast<Word>(i);
  const std::vector<Words> in{index, Words(n, 123), Words(n, 456), Words(n, 7)};
  const Words uniform = run(Opcode::random_uniform, in);
  const Words normal = run(Opcode::random_normal, in);
  double mean = 0, normal_mean = 0, square = 0, fourth = 0;
  for (size_t i = 0; i < n; ++i) {
    const float u = as_float(uniform[i]), z = as_float(normal[i]);
    CHECK(u >= 0 && u < 1 && u * 0x1p24f == std::floor(u * 0x1p24f));
    CHECK(std::isfinite(z));
    mean += u;
    normal_mean += z;
    square += z * z;
    fourth += static_cast<double>(z * z) * (z * z);
  }
  const double count = static_cast<double>(n);
  CHECK(std::abs(mean / count - 0.5) < 0.003);
  CHECK(std::abs(normal_mean / count) < 0.01);
  CHECK(std::abs(square / count - 1) < 0.02);
  CHECK(std::abs(fourth / count - 3) < 0.15);
}
