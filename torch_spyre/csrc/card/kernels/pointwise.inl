// The pointwise operations, one line each: name, types of the operands and of the result, and
// the expression in x, y, z, w. Types: F float, I int32, W the bare word. A float result that is
// NaN becomes the one NaN; W results keep their bits, which is what selecting and moving need.

using F = float;
using I = int32_t;
using W = Word;

template <typename T>
SPYRE_INLINE T from_word(Word word) {
  return bits_as<T>(word);
}
SPYRE_INLINE Word to_word(F value) { return value == value ? bits_as<Word>(value) : kNan; }
SPYRE_INLINE Word to_word(I value) { return bits_as<Word>(value); }
SPYRE_INLINE Word to_word(W value) { return value; }
SPYRE_INLINE F truth(bool value) { return value ? 1.0f : 0.0f; }

// ivdep: the result may be an operand's own array, element for element.
#define SPYRE_OP1(NAME, A, R, ...)                                     \
  static void op_##NAME(const Word* const* in, Word* out, int64_t n) { \
    const Word* const first = in[0];                                   \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {             \
      const A x = from_word<A>(first[i]);                              \
      const R result = __VA_ARGS__;                                    \
      out[i] = to_word(result);                                        \
    }                                                                  \
  }
#define SPYRE_OP2(NAME, A, B, R, ...)                                  \
  static void op_##NAME(const Word* const* in, Word* out, int64_t n) { \
    const Word *const first = in[0], *const second = in[1];            \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {             \
      const A x = from_word<A>(first[i]);                              \
      const B y = from_word<B>(second[i]);                             \
      const R result = __VA_ARGS__;                                    \
      out[i] = to_word(result);                                        \
    }                                                                  \
  }
#define SPYRE_OP3(NAME, A, B, C, R, ...)                                          \
  static void op_##NAME(const Word* const* in, Word* out, int64_t n) {            \
    const Word *const first = in[0], *const second = in[1], *const third = in[2]; \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {                        \
      const A x = from_word<A>(first[i]);                                         \
      const B y = from_word<B>(second[i]);                                        \
      const C z = from_word<C>(third[i]);                                         \
      const R result = __VA_ARGS__;                                               \
      out[i] = to_word(result);                                                   \
    }                                                                             \
  }
#define SPYRE_OP4(NAME, A, B, C, D, R, ...)                            \
  static void op_##NAME(const Word* const* in, Word* out, int64_t n) { \
    const Word *const first = in[0], *const second = in[1];            \
    const Word *const third = in[2], *const fourth = in[3];            \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {             \
      const A x = from_word<A>(first[i]);                              \
      const B y = from_word<B>(second[i]);                             \
      const C z = from_word<C>(third[i]);                              \
      const D w = from_word<D>(fourth[i]);                             \
      const R result = __VA_ARGS__;                                    \
      out[i] = to_word(result);                                        \
    }                                                                  \
  }

// An operation whose vector formula fails on rare operands: those are found on the way and
// done again, one at a time. Works on copies, for the result may replace an operand.
#define SPYRE_OP1_RARE(NAME, FORMULA, IS_RARE, RARE)                   \
  static void op_##NAME(const Word* const* in, Word* out, int64_t n) { \
    constexpr int64_t kChunk = 256;                                    \
    F a[kChunk];                                                       \
    for (int64_t start = 0; start < n; start += kChunk) {              \
      const int64_t count = n - start < kChunk ? n - start : kChunk;   \
      uint32_t rare = 0;                                               \
      for (int64_t i = 0; i < count; ++i) {                            \
        const F x = from_word<F>(in[0][start + i]);                    \
        a[i] = x;                                                      \
        rare |= (IS_RARE) ? 1u : 0u;                                   \
      }                                                                \
      Word* const to = out + start;                                    \
      for (int64_t i = 0; i < count; ++i) {                            \
        const F x = a[i];                                              \
        to[i] = to_word(FORMULA);                                      \
      }                                                                \
      for (int64_t i = 0; rare != 0 && i < count; ++i) {               \
        const F x = a[i];                                              \
        if (IS_RARE) to[i] = to_word(RARE);                            \
      }                                                                \
    }                                                                  \
  }
#define SPYRE_OP2_RARE(NAME, FORMULA, IS_RARE, RARE)                   \
  static void op_##NAME(const Word* const* in, Word* out, int64_t n) { \
    constexpr int64_t kChunk = 256;                                    \
    F a[kChunk], b[kChunk];                                            \
    for (int64_t start = 0; start < n; start += kChunk) {              \
      const int64_t count = n - start < kChunk ? n - start : kChunk;   \
      uint32_t rare = 0;                                               \
      for (int64_t i = 0; i < count; ++i) {                            \
        const F x = from_word<F>(in[0][start + i]);                    \
        const F y = from_word<F>(in[1][start + i]);                    \
        a[i] = x;                                                      \
        b[i] = y;                                                      \
        rare |= (IS_RARE) ? 1u : 0u;                                   \
      }                                                                \
      Word* const to = out + start;                                    \
      for (int64_t i = 0; i < count; ++i) {                            \
        const F x = a[i], y = b[i];                                    \
        to[i] = to_word(FORMULA);                                      \
      }                                                                \
      for (int64_t i = 0; rare != 0 && i < count; ++i) {               \
        const F x = a[i], y = b[i];                                    \
        if (IS_RARE) to[i] = to_word(RARE);                            \
      }                                                                \
    }                                                                  \
  }

// An operation in two steps: the first's result, a float, is the second's `step`.
#define SPYRE_OP2_STEPS(NAME, FIRST, SECOND)                                  \
  static void op_##NAME(const Word* const* in, Word* out, int64_t n) {        \
    constexpr int64_t kChunk = 256;                                           \
    F steps[kChunk];                                                          \
    for (int64_t start = 0; start < n; start += kChunk) {                     \
      const int64_t count = n - start < kChunk ? n - start : kChunk;          \
      const Word *const first = in[0] + start, *const second = in[1] + start; \
      for (int64_t i = 0; i < count; ++i) {                                   \
        const F x = from_word<F>(first[i]), y = from_word<F>(second[i]);      \
        steps[i] = FIRST;                                                     \
      }                                                                       \
      Word* const to = out + start;                                           \
      _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {              \
        const F x = from_word<F>(first[i]), y = from_word<F>(second[i]);      \
        const F step = steps[i];                                              \
        to[i] = to_word(SECOND);                                              \
      }                                                                       \
    }                                                                         \
  }

// ---- Helpers of single operations -------------------------------------------------------------

// Saturates, NaN gives 0: C++ leaves both undefined.
SPYRE_INLINE I to_integer(F x) {
  const F inside = x >= -0x1p31f && x < 0x1p31f ? x : 0.0f;
  const I whole = static_cast<I>(inside);
  return x >= 0x1p31f ? 0x7FFFFFFF : x < -0x1p31f ? static_cast<I>(kSignBit) : whole;
}
// NaN wins; of two zeros the second operand, as PyTorch's vector code has it.
SPYRE_INLINE F maximum(F x, F y) { return x > y || x != x ? x : y; }
SPYRE_INLINE F minimum(F x, F y) { return x < y || x != x ? x : y; }
SPYRE_INLINE F clamp(F x, F low, F high) {
  const F lifted = low > x ? low : x;  // NaN stays
  const F bounded = high < lifted ? high : lifted;
  return (low != low) | (high != high) ? math::kQuietNan : bounded;
}
SPYRE_INLINE F lerp(F a, F b, F weight) {
  return weight < 0.5f && weight > -0.5f ? a + weight * (b - a) : b - (b - a) * (1.0f - weight);
}

// Integer division on doubles, which hold every quotient: there is no vector integer division.
// Division by zero gives 0 in all four operations (PyTorch raises an error, which a card can't);
// the smallest integer divided by -1 wraps.
SPYRE_INLINE W quotient(I x, I y) {
  const bool is_plain = y != 0 && y != -1;
  const auto q = static_cast<I>(static_cast<double>(x) / static_cast<double>(is_plain ? y : 1));
  const W edge = y == 0 ? 0u : 0u - bits_as<W>(x);
  return is_plain ? bits_as<W>(q) : edge;
}
SPYRE_INLINE W int_fmod(I x, I y) {
  return y == 0 ? 0u : bits_as<W>(x) - quotient(x, y) * bits_as<W>(y);
}
SPYRE_INLINE W int_remainder(I x, I y) {
  const W mod = int_fmod(x, y);
  return mod != 0 && ((bits_as<I>(mod) < 0) != (y < 0)) ? mod + bits_as<W>(y) : mod;
}
SPYRE_INLINE W int_floor_division(I x, I y) {
  const W mod = int_fmod(x, y);
  const bool is_rounded_up = mod != 0 && ((bits_as<I>(mod) < 0) != (y < 0));
  return quotient(x, y) - (is_rounded_up ? 1u : 0u);
}
// Shift counts outside the word: nothing remains but the sign.
SPYRE_INLINE W shift_left(W x, W count) { return count < 32 ? x << (count & 31) : 0u; }
SPYRE_INLINE I shift_right(I x, W count) { return x >> (count < 31 ? count : 31u); }

// x^y modulo 2^32. A negative exponent truncates 1/x^-y: 0 unless x is 1 or -1.
SPYRE_INLINE W int_pow(W x, I y) {
  const W odd_sign = (y & 1) != 0 ? x : 1u;
  if (y < 0) return x == 1u || x == ~0u ? odd_sign : 0u;
  W result = 1;
  for (W left = bits_as<W>(y), factor = x; left != 0; left >>= 1, factor *= factor) {
    result *= (left & 1) != 0 ? factor : 1u;
  }
  return result;
}

// ---- Identity and conversion ------------------------------------------------------------------

SPYRE_OP1(identity, W, W, x)
SPYRE_OP1(identity_int, W, W, x)
SPYRE_OP1(float_to_int, F, I, to_integer(x))
SPYRE_OP1(int_to_float, I, F, static_cast<F>(x))
SPYRE_OP1(float_to_bool, F, F, truth(x != 0))
SPYRE_OP1(int_to_bool, W, F, truth(x != 0))

// ---- Float, one operand -----------------------------------------------------------------------

SPYRE_OP1(abs, W, W, x& kMagnitude)
SPYRE_OP1(neg, W, W, x ^ kSignBit)
SPYRE_OP1(exp, F, F, math::exp_f(x))
SPYRE_OP1(exp2, F, F, math::exp2_f(x))
SPYRE_OP1(log, F, F, math::log_f(x))
SPYRE_OP1(log2, F, F, math::log2_f(x))
SPYRE_OP1(log1p, F, F, math::log1p_f(x))
SPYRE_OP1(sqrt, F, F, __builtin_sqrtf(x))
SPYRE_OP1(rsqrt, F, F, math::rsqrt_f(x))
SPYRE_OP1(reciprocal, F, F, 1.0f / x)
SPYRE_OP1(tanh, F, F, math::tanh_f(x))
SPYRE_OP1(sigmoid, F, F, math::sigmoid_f(x))
SPYRE_OP1(relu, F, F, x < 0 ? 0.0f : x)
SPYRE_OP1(gelu, F, F, math::gelu_f(x))
SPYRE_OP1(gelu_tanh, F, F, math::gelu_tanh_f(x))
SPYRE_OP1(silu, F, F, math::silu_f(x))
SPYRE_OP1(erf, F, F, math::erf_f(x))
SPYRE_OP1(floor, F, F, __builtin_floorf(x))
SPYRE_OP1(ceil, F, F, __builtin_ceilf(x))
SPYRE_OP1(round, F, F, __builtin_rintf(x))
SPYRE_OP1(trunc, F, F, __builtin_truncf(x))
SPYRE_OP1(sign, F, F, truth(x > 0) - truth(x < 0))
SPYRE_OP1_RARE(sin, math::sin_f(x), math::is_large_angle(x), math::sin_large(x))
SPYRE_OP1_RARE(cos, math::cos_f(x), math::is_large_angle(x), math::cos_large(x))
SPYRE_OP1(square, F, F, x* x)
SPYRE_OP1(isnan, F, F, truth(x != x))
SPYRE_OP1(isinf, W, F, truth((x & kMagnitude) == kInfinity))
SPYRE_OP1(logical_not, F, F, truth(x == 0))
SPYRE_OP1(expm1, F, F, math::expm1_f(x))
SPYRE_OP1(log10, F, F, math::log10_f(x))

// ---- Float, two operands ----------------------------------------------------------------------

SPYRE_OP2(add, F, F, F, x + y)
SPYRE_OP2(sub, F, F, F, x - y)
SPYRE_OP2(mul, F, F, F, x* y)
SPYRE_OP2(div, F, F, F, x / y)
SPYRE_OP2(maximum, F, F, F, maximum(x, y))
SPYRE_OP2(minimum, F, F, F, minimum(x, y))
SPYRE_OP2_STEPS(pow, math::pow_magnitude(math::magnitude_of(x), y), math::pow_from(step, x, y))
SPYRE_OP2_RARE(fmod, math::fmod_f(x, y), math::has_large_quotient(x, y), math::fmod_large(x, y))
SPYRE_OP2_RARE(remainder, math::remainder_from(math::fmod_f(x, y), y),
               math::has_large_quotient(x, y), math::remainder_from(math::fmod_large(x, y), y))
SPYRE_OP2_RARE(div_floor, math::floor_division_from(math::fmod_f(x, y), x, y),
               math::has_large_quotient(x, y),
               math::floor_division_from(math::fmod_large(x, y), x, y))
SPYRE_OP2(div_trunc, F, F, F, __builtin_truncf(x / y))
SPYRE_OP2(eq, F, F, F, truth(x == y))
SPYRE_OP2(ne, F, F, F, truth(x != y))
SPYRE_OP2(lt, F, F, F, truth(x < y))
SPYRE_OP2(le, F, F, F, truth(x <= y))
SPYRE_OP2(gt, F, F, F, truth(x > y))
SPYRE_OP2(ge, F, F, F, truth(x >= y))
SPYRE_OP2(logical_and, F, F, F, truth((x != 0) & (y != 0)))
SPYRE_OP2(logical_or, F, F, F, truth((x != 0) | (y != 0)))
SPYRE_OP2(logical_xor, F, F, F, truth((x != 0) != (y != 0)))
SPYRE_OP2(atan2, F, F, F, math::atan2_f(x, y))
SPYRE_OP2(leaky_relu, F, F, F, x > 0 ? x : x * y)

// ---- Float, three and four operands -----------------------------------------------------------

SPYRE_OP3(where, F, W, W, W, x != 0 ? y : z)
SPYRE_OP3(clamp, F, F, F, F, clamp(x, y, z))
SPYRE_OP3(lerp, F, F, F, F, lerp(x, y, z))
SPYRE_OP3(add_scaled, F, F, F, F, x + z * y)
SPYRE_OP3(sub_scaled, F, F, F, F, x - z * y)
SPYRE_OP3(softplus, F, F, F, F, math::softplus_f(x, y, z))
SPYRE_OP3(exp_sub, F, F, F, F, math::exp_f((x - y) * z))
SPYRE_OP4(addcmul, F, F, F, F, F, x + w * y * z)
SPYRE_OP4(addcdiv, F, F, F, F, F, x + w * y / z)
SPYRE_OP4(elu, F, F, F, F, F, math::elu_f(x, y, z, w))

// ---- Integer ----------------------------------------------------------------------------------

SPYRE_OP1(abs_int, W, W, bits_as<I>(x) < 0 ? 0u - x : x)
SPYRE_OP1(neg_int, W, W, 0u - x)
SPYRE_OP1(sign_int, I, I, (x > 0) - (x < 0))
SPYRE_OP1(bitwise_not, W, W, ~x)
SPYRE_OP1(square_int, W, W, x* x)
SPYRE_OP1(relu_int, I, I, x > 0 ? x : 0)
SPYRE_OP1(logical_not_int, W, F, truth(x == 0))
SPYRE_OP2(add_int, W, W, W, x + y)
SPYRE_OP2(sub_int, W, W, W, x - y)
SPYRE_OP2(mul_int, W, W, W, x* y)
SPYRE_OP2(maximum_int, I, I, I, x > y ? x : y)
SPYRE_OP2(minimum_int, I, I, I, x < y ? x : y)
SPYRE_OP2(pow_int, W, I, W, int_pow(x, y))
SPYRE_OP2(fmod_int, I, I, W, int_fmod(x, y))
SPYRE_OP2(remainder_int, I, I, W, int_remainder(x, y))
SPYRE_OP2(div_floor_int, I, I, W, int_floor_division(x, y))
SPYRE_OP2(div_trunc_int, I, I, W, quotient(x, y))
SPYRE_OP2(eq_int, I, I, F, truth(x == y))
SPYRE_OP2(ne_int, I, I, F, truth(x != y))
SPYRE_OP2(lt_int, I, I, F, truth(x < y))
SPYRE_OP2(le_int, I, I, F, truth(x <= y))
SPYRE_OP2(gt_int, I, I, F, truth(x > y))
SPYRE_OP2(ge_int, I, I, F, truth(x >= y))
SPYRE_OP2(bitwise_and, W, W, W, x& y)
SPYRE_OP2(bitwise_or, W, W, W, x | y)
SPYRE_OP2(bitwise_xor, W, W, W, x ^ y)
SPYRE_OP2(shift_left, W, W, W, shift_left(x, y))
SPYRE_OP2(shift_right, I, W, I, shift_right(x, y))
SPYRE_OP2(logical_and_int, W, W, F, truth((x != 0) & (y != 0)))
SPYRE_OP2(logical_or_int, W, W, F, truth((x != 0) | (y != 0)))
SPYRE_OP2(logical_xor_int, W, W, F, truth((x != 0) != (y != 0)))
SPYRE_OP3(where_int, F, W, W, W, x != 0 ? y : z)
SPYRE_OP3(clamp_int, I, I, I, I, (x > y ? x : y) < z ? (x > y ? x : y) : z)
SPYRE_OP3(add_scaled_int, W, W, W, W, x + z * y)
SPYRE_OP3(sub_scaled_int, W, W, W, W, x - z * y)
SPYRE_OP4(addcmul_int, W, W, W, W, W, x + w * y * z)

// ---- Random numbers ---------------------------------------------------------------------------

// Philox 4x32-10: key (seed low, seed high), block counter (element index, counter, 0, 0), both
// least significant word first. An element uses the first two of the four words it gets, so its
// value depends on nothing but its index: not on the split over cores, nor on the host.
struct RandomWords {
  W first, second;
};
SPYRE_INLINE RandomWords philox(W index, W seed_low, W seed_high, W counter) {
  W c0 = index, c1 = counter, c2 = 0, c3 = 0;
  W k0 = seed_low, k1 = seed_high;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<W>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<W>(p1);
    c2 = static_cast<W>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<W>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1};
}
// Box-Muller: the radius from the first word as a number in (0, 1], the angle from the second.
SPYRE_INLINE F normal(RandomWords words) {
  // Through int32: there is no vector conversion of uint32 before AVX-512.
  const double first = static_cast<double>(static_cast<I>(words.first ^ kSignBit));
  const double u = (first + (0x1p31 + 1)) * 0x1p-32;
  const double turn = static_cast<double>(static_cast<I>(words.second)) * 0x1p-32;
  return static_cast<F>(__builtin_sqrt(-2.0 * math::log(u)) * math::cos(turn * 2 * math::kPi));
}

SPYRE_OP4(random_bits, W, W, W, W, W, philox(x, y, z, w).first >> 1)
SPYRE_OP4(random_uniform, W, W, W, W, F,
          static_cast<F>(static_cast<I>(philox(x, y, z, w).first >> 8)) * 0x1p-24f)
SPYRE_OP4(random_normal, W, W, W, W, F, normal(philox(x, y, z, w)))
