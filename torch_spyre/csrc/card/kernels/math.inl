// Elementary functions of fp32 arguments, evaluated in double (but for exp) and rounded once, so
// that the error stays close to half a unit in the last place. Only + - * / sqrt, explicit fused
// multiply-adds, conversions and bit operations: the same bits on every host. Branch-free unless
// said otherwise.
//
// Polynomial errors are quoted relative to the result; one unit of fp32 is at least 6e-8.

// a * b + c, rounded once. Without hardware for it: the product is exact in double; the sum is
// rounded to odd, which a second rounding to fp32 can't spoil (53 bits are more than 2 * 24 + 2).
SPYRE_INLINE float fused(float a, float b, float c) {
#if SPYRE_FMA_WIDTH != 0 || defined(__FP_FAST_FMAF)
  return __builtin_fmaf(a, b, c);
#else
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  const double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  const uint64_t bits = bits_as<uint64_t>(sum);
  // Not for NaN and infinity, whose error is NaN.
  const bool is_inexact = (error < 0) | (error > 0);
  const bool is_away = (error < 0) == (sum < 0);
  const uint64_t odd = is_away ? bits + 1 : bits - 1;
  return static_cast<float>(bits_as<double>(is_inexact & ((bits & 1) == 0) ? odd : bits));
#endif
}

namespace math {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kPi = 0x1.921fb54442d18p+1;
constexpr float kInf = __builtin_inff();
constexpr float kQuietNan = __builtin_nanf("");
// Adding it leaves an integer (two's complement) in the low bits of a double's pattern.
constexpr double kShifter = 0x1.8p52;

SPYRE_INLINE bool is_nan(float x) { return x != x; }
SPYRE_INLINE double bound(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;  // lets NaN pass
}
SPYRE_INLINE uint32_t sign_of(float x) { return bits_as<uint32_t>(x) & kSignBit; }
SPYRE_INLINE float magnitude_of(float x) {
  return bits_as<float>(bits_as<uint32_t>(x) & kMagnitude);
}
SPYRE_INLINE float with_sign_of(float magnitude, float sign) {
  return bits_as<float>((bits_as<uint32_t>(magnitude) & kMagnitude) | sign_of(sign));
}

// c[0] + c[1] x + c[2] x^2 + ..., pairing terms (Estrin): a chain of dependent operations half as
// long as Horner's, which is what the host waits for.
template <int kTerms>
SPYRE_INLINE double polynomial(double x, const double (&c)[kTerms]) {
  if constexpr (kTerms == 1) {
    return c[0];
  } else {
    double pairs[(kTerms + 1) / 2];
#pragma GCC unroll 16
    for (int i = 0; i < kTerms / 2; ++i) pairs[i] = c[2 * i] + c[2 * i + 1] * x;
    if (kTerms % 2 == 1) pairs[kTerms / 2] = c[kTerms - 1];
    return polynomial(x * x, pairs);
  }
}

// ---- Exponentials -------------------------------------------------------------------------------

// e^r - 1 for |r| <= ln(2)/2, error 2e-10.
SPYRE_INLINE double expm1_near_zero(double r) {
  return r * polynomial(r, {1.0, 0.50000000471460574, 0.16666666719028935, 0.041666352771112211,
                            0.0083332984698005894, 0.0013941118895837001, 0.00019899285575896282});
}

// 2^n from kShifter + n; 1 for NaN.
SPYRE_INLINE double power_of_two(double shifted) {
  return bits_as<double>((bits_as<uint64_t>(shifted) << 52) + bits_as<uint64_t>(1.0));
}

SPYRE_INLINE double exp(double x) {
  x = bound(x, -700, 700);  // far outside fp32 on both sides, inside double
  const double shifted = x * kLog2E + kShifter;
  const double scale = power_of_two(shifted);
  return scale + scale * expm1_near_zero(x - (shifted - kShifter) * kLn2);
}

SPYRE_INLINE double expm1(double x) {
  x = bound(x, -700, 700);
  const double shifted = x * kLog2E + kShifter;
  const double scale = power_of_two(shifted);
  // No cancellation: scale - 1 is exact, and zero when x is near zero.
  return scale * expm1_near_zero(x - (shifted - kShifter) * kLn2) + (scale - 1.0);
}

SPYRE_INLINE double exp2(double x) {
  x = bound(x, -1000, 1000);
  const double shifted = x + kShifter;
  const double scale = power_of_two(shifted);
  return scale + scale * expm1_near_zero((x - (shifted - kShifter)) * kLn2);
}

// In fp32 throughout, for softmax waits for it: less than half of what it takes in double, and off
// by less than one unit in the last place.
SPYRE_INLINE float exp_f(float x) {
  constexpr float kLn2Upper = 0x1.62e43p-1f;
  constexpr float kLn2Lower = -0x1.05c61p-29f;
  constexpr float kShift = 0x1.8p23f;  // as kShifter
  // From here on it is 0 or infinity. On the bits: one operation, where NaN makes it several.
  constexpr uint32_t kFar = 0x42D00000u;  // 104
  const float near = bits_as<float>(smaller(bits_as<uint32_t>(x) & kMagnitude, kFar) | sign_of(x));
  const float shifted = fused(near, 0x1.715476p+0f, kShift);
  const float n = shifted - kShift;
  const float r = fused(n, -kLn2Lower, fused(n, -kLn2Upper, near));
  // (e^r - 1 - r) / r^2, error 4e-9 of e^r
  float q = fused(0x1.6a2426p-10f, r, 0x1.1239e4p-7f);
  q = fused(q, r, 0x1.5558f2p-5f);
  q = fused(q, r, 0x1.555492p-3f);
  q = fused(q, r, 0x1.fffffcp-2f);
  const float fraction = 1.0f + fused(r * r, q, r);
  // Times 2^n in two steps, for 2^n may be too small or too large for an fp32. Only the second one
  // rounds: the first one moves the exponent.
  const uint32_t whole = bits_as<uint32_t>(shifted) - bits_as<uint32_t>(kShift);
  const auto half = static_cast<uint32_t>(bits_as<int32_t>(whole) >> 1);
  const float scaled = bits_as<float>(bits_as<uint32_t>(fraction) + (half << 23));
  const float result = scaled * bits_as<float>((whole - half + 127u) << 23);
  return is_nan(x) ? x : result;
}
SPYRE_INLINE float exp2_f(float x) { return static_cast<float>(exp2(x)); }
SPYRE_INLINE float expm1_f(float x) { return x == 0 ? x : static_cast<float>(expm1(x)); }

SPYRE_INLINE double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
SPYRE_INLINE float sigmoid_f(float x) { return static_cast<float>(sigmoid(x)); }

SPYRE_INLINE float tanh_f(float x) {
  const double e = expm1(bound(2.0 * static_cast<double>(magnitude_of(x)), 0, 80));
  return with_sign_of(static_cast<float>(e / (e + 2.0)), x);
}

// x times a factor that falls faster than x grows. As in PyTorch, -inf times 0 is NaN.
SPYRE_INLINE float gated(float x, double product) {
  return x == -kInf ? kQuietNan : static_cast<float>(product);
}
SPYRE_INLINE float silu_f(float x) { return gated(x, x / (1.0 + exp(-static_cast<double>(x)))); }
SPYRE_INLINE float gelu_tanh_f(float x) {
  // (1 + tanh u) / 2 is the sigmoid of 2u, without its cancellation.
  const double d = x;
  const double u = 0x1.9884533d43651p-1 * (d + 0.044715 * d * d * d);  // sqrt(2/pi)
  return gated(x, d / (1.0 + exp(-2.0 * u)));
}

// ---- Logarithms ---------------------------------------------------------------------------------

struct LogParts {
  double exponent;  // x = 2^exponent * (1 + fraction), sqrt(1/2) <= 1 + fraction < sqrt(2)
  double fraction;
};

// For positive finite x; any fp32, subnormal or not, is a normal double.
SPYRE_INLINE LogParts split(double x) {
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDu;
  constexpr uint64_t kOffset = uint64_t{1024} << 52;  // keeps the exponent field positive
  const uint64_t above = bits_as<uint64_t>(x) - kSqrtHalf;
  const uint64_t exponent = (above + kOffset) >> 52;
  const uint64_t scaled = bits_as<uint64_t>(x) - (above & 0xFFF0000000000000u);
  // The exponent becomes a double through its pattern: AVX2 has no 64-bit conversion.
  const double biased = bits_as<double>(exponent | bits_as<uint64_t>(0x1p52));
  return {biased - (0x1p52 + 1024), bits_as<double>(scaled) - 1.0};
}

// ln(1 + f) for the fractions of `split`, error 4e-12.
SPYRE_INLINE double log_fraction(double f) {
  const double s = f / (2.0 + f);
  return s * polynomial(s * s, {2.0000000000083638, 0.66666665246910809, 0.40000384790114788,
                                0.28535043563132363, 0.23616504319718872});
}

SPYRE_INLINE double log(double x) {
  const LogParts parts = split(x);
  return parts.exponent * kLn2 + log_fraction(parts.fraction);
}
SPYRE_INLINE double log2(double x) {
  const LogParts parts = split(x);
  return parts.exponent + log_fraction(parts.fraction) * kLog2E;
}

// ln(1 + x) for finite x > -1.
SPYRE_INLINE double log1p(double x) {
  const LogParts parts = split(1.0 + x);
  // Where 1 + x keeps its exponent, x itself is the fraction: the sum may have lost bits of it.
  const double fraction = parts.exponent == 0 ? x : parts.fraction;
  return parts.exponent * kLn2 + log_fraction(fraction);
}

// What a logarithm gives where its formula doesn't hold; x is its argument less the pole.
SPYRE_INLINE float at_log_limits(float x, float result) {
  result = x == 0 ? -kInf : result;
  result = x == kInf ? kInf : result;
  return (x < 0) | is_nan(x) ? kQuietNan : result;
}
SPYRE_INLINE float log_f(float x) { return at_log_limits(x, static_cast<float>(log(x))); }
SPYRE_INLINE float log2_f(float x) { return at_log_limits(x, static_cast<float>(log2(x))); }
SPYRE_INLINE float log10_f(float x) {
  return at_log_limits(x, static_cast<float>(log(x) * 0x1.bcb7b1526e50ep-2));  // 1 / ln(10)
}
SPYRE_INLINE float log1p_f(float x) {
  const float result = x == 0 ? x : static_cast<float>(log1p(x));
  return x == 0 ? x : at_log_limits(x < 1 ? x + 1.0f : x, result);
}

// As PyTorch: x itself once beta * x has passed the threshold.
SPYRE_INLINE float softplus_f(float x, float beta, float threshold) {
  const float scaled = x * beta;
  const double d = scaled;
  // max(d, 0) + ln(1 + e^-|d|) overflows nowhere.
  const double tail = log1p(exp(d < 0 ? d : -d));
  const double sum = d > 0 ? d + tail : tail;
  const float smooth = is_nan(scaled) ? scaled : static_cast<float>(sum / beta);
  return scaled > threshold ? x : smooth;
}

SPYRE_INLINE float elu_f(float x, float alpha, float scale, float input_scale) {
  return x < 0 ? expm1_f(x * input_scale) * (alpha * scale) : x * scale;
}

// C's pow in two steps, for the compiler turns the special cases into branches, and a loop that
// mixes those with the long computation stays scalar.
//
// First, x^y for x >= 0 other than 1: with the logarithm's own limits, zero and infinity follow
// from the arithmetic. Undefined for NaN, for x = 1 with y infinite, and for y = 0.
SPYRE_INLINE float pow_magnitude(float x, float y) {
  const float at_zero = x == 0 ? -kInf : 0.0f;
  const float limit = x == kInf ? kInf : at_zero;
  return static_cast<float>(exp2(y * (log2(x) + limit)));
}
// Second, all of pow from what the first gives for the magnitude of x.
SPYRE_INLINE float pow_from(float result, float x, float y) {
  const float size = magnitude_of(y);
  const float small = size < 0x1p24f ? size : 0.0f;  // from there on all floats are even
  const int32_t whole = static_cast<int32_t>(small);
  const bool is_whole = static_cast<float>(whole) == small;
  const uint32_t sign = static_cast<uint32_t>(whole) << 31 & sign_of(x);
  const bool is_root = (x < 0) & (x != -kInf) & !is_whole;
  const bool is_one = (x == 1) | (y == 0) | ((x == -1) & (size == kInf));
  const uint32_t signed_result = bits_as<uint32_t>(result) ^ (is_whole ? sign : 0u);
  // All it takes to make any number NaN; log2 takes the bits of a NaN for a number's.
  const uint32_t nan = is_root | is_nan(x) | is_nan(y) ? kNan : 0u;
  return is_one ? 1.0f : bits_as<float>(signed_result | nan);
}

// ---- Error function -----------------------------------------------------------------------------

// e^(z*z) erfc(z) for 0 <= z <= 11, error 1e-11. (z + 3) times it is smooth in t = (z - 3)/(z + 3).
SPYRE_INLINE double erfc_scaled(double z) {
  const double inverse = 1.0 / (z + 3.0);
  const double t = (z - 3.0) * inverse;
  const double p = polynomial(
      t, {1.0740069070895004, -0.8833944531915449, 0.59022835694367505, -0.31046726043206776,
          0.11952776524486786, -0.026827262065346719, -0.0012124608068577195, 0.0030342820335250529,
          -0.0005480129603051572, -0.00027764024690045143, 0.00010633434716724618,
          3.1953201156589941e-5, -1.4672774719975201e-5, -5.4022196281725133e-6});
  return p * inverse;
}
// erfc(z) for z >= 0 with z*z given, until it underflows: beyond 11 fp32 has nothing left.
SPYRE_INLINE double erfc(double z, double squared) {
  return exp(-squared) * erfc_scaled(z < 11 ? z : 11);
}

// erf(z) for 0 <= z <= 1, error 3e-11.
SPYRE_INLINE double erf_near_zero(double z) {
  return z *
         polynomial(z * z, {1.1283791670615434, -0.3761263846802871, 0.11283782495236845,
                            -0.026865430727670243, 0.0052210318078580228, -0.00084840804055351063,
                            0.00011265959025606609, -9.6670445714869964e-6});
}

SPYRE_INLINE float erf_f(float x) {
  const double z = magnitude_of(x);
  const double result = z < 1 ? erf_near_zero(z) : 1.0 - erfc(z, z * z);
  return is_nan(x) ? x : with_sign_of(static_cast<float>(result), x);
}

SPYRE_INLINE float gelu_f(float x) {
  const double d = x;
  const double z = static_cast<double>(magnitude_of(x)) * 0x1.6a09e667f3bcdp-1;  // 1/sqrt(2)
  const double tail = erfc(z, d * d * 0.5);
  // The half of erfc that doesn't cancel: 1 + erf(x/sqrt 2) is tail for x < 0.
  const float result = gated(x, 0.5 * d * (x < 0 ? tail : 2.0 - tail));
  return is_nan(x) ? x : result;
}

// ---- Circular functions -------------------------------------------------------------------------

constexpr float kLargeAngle = 0x1p20f;

struct Angle {
  double rest;       // within a quarter turn: |rest| <= pi/4, the angle less its quarters
  uint64_t quarter;  // modulo 4
};

// For |x| <= kLargeAngle: the three parts of pi/2 have 33, 33 and 53 bits, so that a count of at
// most 20 bits times the first two is exact.
SPYRE_INLINE Angle reduce_angle(double x) {
  const double shifted = x * 0x1.45f306dc9c883p-1 + kShifter;  // 2/pi
  const double n = shifted - kShifter;
  const double rest =
      ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
  return {rest, bits_as<uint64_t>(shifted)};
}

// sin(rest + quarter * pi/2)
SPYRE_INLINE double sin_of(Angle angle) {
  const double z = angle.rest * angle.rest;
  const double s =  // error 1e-11
      angle.rest *
      polynomial(z, {1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800});
  const double c =  // error 1e-12
      polynomial(z,
                 {1.0, -0.5, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600});
  const double value = (angle.quarter & 1) != 0 ? c : s;
  return bits_as<double>(bits_as<uint64_t>(value) ^ ((angle.quarter & 2) << 62));
}
SPYRE_INLINE double sin(double x) { return sin_of(reduce_angle(x)); }
SPYRE_INLINE double cos(double x) {
  const Angle angle = reduce_angle(x);
  return sin_of({angle.rest, angle.quarter + 1});
}

// The reduction for large angles, one at a time: multiplies the 24-bit significand by the 96 bits
// of 2/pi that decide the quarter and the 70 bits after it; bits above only add whole turns.
static Angle reduce_large_angle(float x) {
  static constexpr uint32_t kTwoOverPi[] = {0,          0xa2f9836e, 0x4e441529, 0xfc2757d1,
                                            0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
  __extension__ using Wide = unsigned __int128;
  const uint32_t word = bits_as<uint32_t>(x);
  const uint32_t exponent = (word & kMagnitude) >> 23;
  const uint32_t significand = (word & 0x7FFFFFu) | 0x800000u;
  const uint32_t first = 30 + exponent - 150;  // bit of the table, which starts with 32 zeros
  Wide window = 0;
  for (uint32_t i = 0; i < 4; ++i) window = (window << 32) | kTwoOverPi[first / 32 + i];
  window = (window << (first % 32)) >> 32;
  // In units of 2^-94 quarters; the shift drops whole turns.
  const Wide turns = (window * significand) << 32;
  const auto quarter = static_cast<uint64_t>(turns >> 126);
  const auto rest = static_cast<int64_t>(static_cast<uint64_t>((turns << 2) >> 64));
  const double angle = static_cast<double>(rest) * 0x1p-64 * (kPi / 2);
  const uint64_t nearest = quarter + (rest < 0 ? 1 : 0);
  return (word & kSignBit) != 0 ? Angle{-angle, ~nearest + 1} : Angle{angle, nearest};
}

SPYRE_INLINE bool is_large_angle(float x) { return !(magnitude_of(x) <= kLargeAngle); }
SPYRE_INLINE float sin_f(float x) {
  return x == 0 ? x : static_cast<float>(sin(is_large_angle(x) ? 0.0f : x));
}
SPYRE_INLINE float cos_f(float x) { return static_cast<float>(cos(is_large_angle(x) ? 0.0f : x)); }
static float sin_large(float x) {
  if (!(magnitude_of(x) < kInf)) return kQuietNan;
  return static_cast<float>(sin_of(reduce_large_angle(x)));
}
static float cos_large(float x) {
  if (!(magnitude_of(x) < kInf)) return kQuietNan;
  const Angle angle = reduce_large_angle(x);
  return static_cast<float>(sin_of({angle.rest, angle.quarter + 1}));
}

// The angle of the point (b, a), which lies in the first quadrant.
SPYRE_INLINE double angle_of(double a, double b) {
  const double small = a < b ? a : b;
  const double large = a < b ? b : a;
  double ratio = small / large;
  ratio = large == 0 ? 0.0 : ratio;
  ratio = small == static_cast<double>(kInf) ? 1.0 : ratio;
  const double z = ratio * ratio;
  const double p =  // atan(r)/r for r <= 1, error 2e-11
      polynomial(
          z, {0.99999999998873813, -0.33333332951657216, 0.19999978336217084, -0.1428522560816021,
              0.11105306732424464, -0.090491790937205773, 0.074952623780996963,
              -0.060221963879374327, 0.043646589442816673, -0.026005995977608619,
              0.011427633277375594, -0.0031954252407363946, 0.00041922786011272895});
  const double angle = ratio * p;
  return a > b ? kPi / 2 - angle : angle;
}
SPYRE_INLINE float atan2_f(float y, float x) {
  const double acute = angle_of(magnitude_of(y), magnitude_of(x));
  const double angle = sign_of(x) != 0 ? kPi - acute : acute;
  const float result = with_sign_of(static_cast<float>(angle), y);
  return is_nan(x) | is_nan(y) ? kQuietNan : result;
}

// ---- Division with remainder
// ----------------------------------------------------------------------

// Quotients up to this are whole in 28 bits, so that quotient * divisor is exact in double.
constexpr double kLargeQuotient = 0x1p28;

SPYRE_INLINE bool has_large_quotient(float a, float b) {
  const double q = static_cast<double>(magnitude_of(a)) / static_cast<double>(magnitude_of(b));
  return !(q < kLargeQuotient);
}
SPYRE_INLINE float fmod_f(float a, float b) {
  const double n = magnitude_of(a);
  const double divisor = magnitude_of(b);
  const double d = divisor < 1e300 ? divisor : 1e300;  // infinity, too, leaves n
  // With the quotient's nearest whole number the rest is exact, and at most half of d off zero.
  const double rest = n - ((n / d + 0x1p52) - 0x1p52) * d;
  return with_sign_of(static_cast<float>(rest < 0 ? rest + d : rest), a);
}
// fmod is exact by definition, so the C library's is the same everywhere.
static float fmod_large(float a, float b) { return __builtin_fmodf(a, b); }

SPYRE_INLINE bool signs_differ(float mod, float b) { return mod != 0 && (b < 0) != (mod < 0); }
SPYRE_INLINE float remainder_from(float mod, float b) {
  return signs_differ(mod, b) ? mod + b : mod;
}
// PyTorch's floor division, which follows Python's: exact where a/b is, and consistent with
// remainder elsewhere.
SPYRE_INLINE float floor_division_from(float mod, float a, float b) {
  const float exact = (a - mod) / b;
  const float quotient = signs_differ(mod, b) ? exact - 1.0f : exact;
  const float down = __builtin_floorf(quotient);
  const float floored = quotient - down > 0.5f ? down + 1.0f : down;
  const float result = quotient != 0 ? floored : with_sign_of(0.0f, a / b);
  return b == 0 ? a / b : result;
}

// fp32's own answer is off by up to two units; one step of Newton's in double mends that at less
// than the price of a root and a division in double.
SPYRE_INLINE float rsqrt_f(float x) {
  const float rough = 1.0f / __builtin_sqrtf(x);
  const double y = rough;
  const double error = 1.0 - static_cast<double>(x) * (y * y);
  const float result = static_cast<float>(y + y * (0.5 * error));
  return is_nan(result) ? rough : result;  // zero and infinity
}

}  // namespace math
