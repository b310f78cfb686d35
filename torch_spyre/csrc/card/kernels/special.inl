// Special functions of fp32 arguments and the operations that use them. As in math.inl they are
// evaluated in double with nothing but + - * / sqrt, and rounded once. They are rare, so they may
// branch and loop: series where those converge, integrals by the trapezoidal rule, asymptotic
// series beyond. Where a loop could run for as long as its argument says there is a limit.

namespace math {

constexpr double kEuler = 0x1.2788cfc6fb619p-1;
constexpr double kLogSqrtTwoPi = 0x1.d67f1c864beb5p-1;
constexpr double kInverseSqrtPi = 0x1.20dd750429b6dp-1;
constexpr double kSqrtTwo = 0x1.6a09e667f3bcdp+0;

SPYRE_INLINE float rounded(double x) { return static_cast<float>(x); }
SPYRE_INLINE bool is_whole(float x) { return x == __builtin_truncf(x); }
SPYRE_INLINE bool is_odd(float whole) {
  return magnitude_of(whole) < 0x1p24f && (static_cast<int32_t>(whole) & 1) != 0;
}
static Angle angle_for(float x) {
  return is_large_angle(x) ? reduce_large_angle(x) : reduce_angle(x);
}
SPYRE_INLINE double cos_of(Angle angle) { return sin_of({angle.rest, angle.quarter + 1}); }
// x^y for x > 0.
static double power(double x, double y) { return exp(y * log(x)); }

// ---- Circular and hyperbolic functions ----------------------------------------------------------

SPYRE_INLINE float tan_f(float x) {
  const Angle angle = reduce_angle(is_large_angle(x) ? 0.0f : x);
  return x == 0 ? x : rounded(sin_of(angle) / cos_of(angle));
}
static float tan_large(float x) {
  if (!(magnitude_of(x) < kInf)) return kQuietNan;
  const Angle angle = reduce_large_angle(x);
  return rounded(sin_of(angle) / cos_of(angle));
}
// The other leg of a right triangle with hypotenuse 1; NaN if there is none.
SPYRE_INLINE double other_leg(double x) { return __builtin_sqrt((1.0 - x) * (1.0 + x)); }
SPYRE_INLINE float asin_f(float x) {
  const double leg = other_leg(x);
  const float result = with_sign_of(rounded(angle_of(magnitude_of(x), leg)), x);
  return leg != leg ? kQuietNan : result;
}
SPYRE_INLINE double acos(double x) {
  const double leg = other_leg(x);
  const double acute = angle_of(leg, x < 0 ? -x : x);
  const double angle = x < 0 ? kPi - acute : acute;
  return leg != leg ? leg : angle;
}
SPYRE_INLINE float sinh_f(float x) {
  const double e = expm1(magnitude_of(x));
  return with_sign_of(rounded(0.5 * (e + e / (e + 1.0))), x);
}
SPYRE_INLINE float cosh_f(float x) {
  const double e = exp(magnitude_of(x));
  return rounded(0.5 * (e + 1.0 / e));
}
SPYRE_INLINE float asinh_f(float x) {
  const double a = magnitude_of(x);
  const double squared = a * a;
  const double result = log1p(a + squared / (1.0 + __builtin_sqrt(1.0 + squared)));
  return magnitude_of(x) < kInf ? with_sign_of(rounded(result), x) : x;
}
SPYRE_INLINE float acosh_f(float x) {
  const double above = static_cast<double>(x) - 1.0;
  const double result = log1p(above + __builtin_sqrt(above * (above + 2.0)));
  const float limit = x == kInf ? kInf : kQuietNan;
  return (x >= 1) & (x < kInf) ? rounded(result) : limit;
}
SPYRE_INLINE float atanh_f(float x) {
  const double a = magnitude_of(x);
  const double result = 0.5 * log1p(2.0 * a / (1.0 - a));
  const float limit = a == 1 ? with_sign_of(kInf, x) : kQuietNan;
  return a < 1 ? with_sign_of(rounded(result), x) : limit;
}

// ---- Error function -----------------------------------------------------------------------------

SPYRE_INLINE float erfc_f(float x) {
  const double z = magnitude_of(x);
  const double tail = erfc(z, z * z);
  return is_nan(x) ? x : rounded(x < 0 ? 2.0 - tail : tail);
}

// e^(z*z) erfc(z), z >= 0.
static double scaled_tail(double z) {
  if (z < 11) return erfc_scaled(z);
  // The sum of (-1)^k (2k - 1)!! / (2 z*z)^k from the end.
  const double step = 0.5 / (z * z);
  double sum = 1.0;
  for (int k = 7; k >= 1; --k) sum = 1.0 - (2 * k - 1) * step * sum;
  return kInverseSqrtPi / z * sum;
}
static float erfcx_f(float x) {
  if (is_nan(x)) return x;
  const double z = magnitude_of(x);
  const double tail = scaled_tail(z);
  return x < 0 ? rounded(2.0 * exp(z * z) - tail) : rounded(tail);
}

// The z >= 0 with erf(z) = value, whose complement 1 - value is given as well since it may be all
// that is left. Starts from Winitzki's approximation; Halley's method triples its three digits.
static double inverse_erf(double value, double complement) {
  constexpr double kShape = 0.147;
  // ln(1 - value^2), from whichever of the two is small.
  const double l = value < 0.5 ? log1p(-value * value) : log(complement * (1.0 + value));
  const double t = 2.0 / (kPi * kShape) + 0.5 * l;
  const double root = __builtin_sqrt(t * t - l / kShape);
  // Of root - t and its equal, the one that doesn't cancel.
  double z = __builtin_sqrt(t > 0 ? -l / kShape / (root + t) : root - t);
  for (int i = 0; i < 3; ++i) {
    const double squared = z * z;
    const double error = z < 1 ? erf_near_zero(z) - value : complement - erfc(z, squared);
    const double step = error / (2.0 * kInverseSqrtPi) * exp(squared);
    z -= step / (1.0 + z * step);
  }
  return z;
}
static float erfinv_f(float x) {
  const double a = magnitude_of(x);
  if (a == 0) return x;
  if (!(a < 1)) return a == 1 ? with_sign_of(kInf, x) : kQuietNan;
  return with_sign_of(rounded(inverse_erf(a, 1.0 - a)), x);
}
// The x below which a normally distributed number lies with this probability.
static float ndtri_f(float probability) {
  const double p = probability;
  if (!(p > 0 && p < 1)) return p == 0 ? -kInf : p == 1 ? kInf : kQuietNan;
  const double complement = 2.0 * (p < 0.5 ? p : 1.0 - p);
  const double z = complement == 1 ? 0.0 : kSqrtTwo * inverse_erf(1.0 - complement, complement);
  return rounded(p < 0.5 ? -z : z);
}

// ---- Gamma function -----------------------------------------------------------------------------

// What Stirling's formula for ln(gamma(x)) lacks, x >= 8.
static double stirling_rest(double x) {
  const double inverse = 1.0 / x;
  return inverse * polynomial(inverse * inverse, {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680,
                                                  1.0 / 1188, -691.0 / 360360, 1.0 / 156});
}
// ln(gamma(2 + t)) for |t| <= 1/2, error 2e-13.
static double log_gamma_near_two(double t) {
  return t * polynomial(t, {0.42278433509846713, 0.32246703342004873, -0.06735230105130044,
                            0.020580808882117916, -0.007385551240791602, 0.0028904958630843014,
                            -0.0011927471573807307, 0.0005098661348137004, -0.00022324653987287443,
                            9.816870450896373e-05, -4.4324684533065815e-05, 2.4487052975853987e-05,
                            -1.1296499102214296e-05});
}
// ln(gamma(x)), x > 0; as accurate at its roots 1 and 2.
static double log_gamma(double x) {
  if (x >= 8) return (x - 0.5) * log(x) - x + kLogSqrtTwoPi + stirling_rest(x);
  double below = 1.0;
  double above = 1.0;
  for (; x < 1.5; x += 1.0) below *= x;
  for (; x > 2.5; x -= 1.0) above *= x - 1.0;
  return log_gamma_near_two(x - 2.0) + (above > 1 ? log(above) : -log(below));
}
// How far x is from the nearest whole number, exactly; |x| < 2^31.
SPYRE_INLINE double to_nearest(double x) { return x - ((x + kShifter) - kShifter); }

static float lgamma_f(float x) {
  if (is_nan(x)) return x;
  if (magnitude_of(x) == kInf || (x <= 0 && is_whole(x))) return kInf;
  if (x > 0) return rounded(log_gamma(x));
  const double sine = sin(kPi * to_nearest(x));
  return rounded(log(kPi / (sine < 0 ? -sine : sine)) - log_gamma(1.0 - x));
}

// The derivative of ln(gamma(x)), x > 0.
static double digamma(double x) {
  double sum = 0.0;
  for (; x < 10; x += 1.0) sum -= 1.0 / x;
  const double z = 1.0 / (x * x);
  const double series = z * polynomial(z, {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132,
                                           -691.0 / 32760, 1.0 / 12});
  return sum + log(x) - 0.5 / x - series;
}
static float digamma_f(float x) {
  if (x == kInf || is_nan(x)) return x;
  if (x == 0) return with_sign_of(kInf, -x);
  if (x > 0) return rounded(digamma(x));
  if (is_whole(x)) return kQuietNan;
  const Angle angle = reduce_angle(kPi * to_nearest(x));
  return rounded(digamma(1.0 - x) - kPi * cos_of(angle) / sin_of(angle));
}

// The sum of (q + k)^-s over k >= 0 for s > 1, q > 0: ten terms, then Euler and Maclaurin.
static double hurwitz(double s, double q) {
  if (s > 10000) return power(q, s < 1e38 ? -s : -1e38);  // the first term is all there is
  double sum = 0.0;
  for (int k = 0; k < 10; ++k, q += 1.0) sum += power(q, -s);
  const double last = power(q, -s);
  sum += last * (q / (s - 1.0) + 0.5);
  // B(2j) / (2j)! * s (s + 1) ... (s + 2j - 2) * q^(1 - s - 2j)
  constexpr double kBernoulli[] = {1.0 / 12,       -1.0 / 720,     1.0 / 30240,
                                   -1.0 / 1209600, 1.0 / 47900160, -691.0 / 1307674368000.0};
  double factor = s / q;
  for (int j = 0; j < 6; ++j) {
    sum += kBernoulli[j] * factor * last;
    factor *= (s + 2 * j + 1) * (s + 2 * j + 2) / (q * q);
  }
  return sum;
}
static float zeta_f(float s, float q) {
  if (is_nan(s) | is_nan(q)) return kQuietNan;
  if (!(s > 1)) return s == 1 ? kInf : kQuietNan;
  if (q > 0) return q == kInf ? 0.0f : rounded(hurwitz(s, q));
  if (is_whole(q)) return kInf;
  if (!is_whole(s)) return kQuietNan;
  // The terms before zero are those of a series upwards that ends.
  const double whole = __builtin_floorf(q);
  const double rest = q - whole;
  const double before = hurwitz(s, 1.0 - rest) - hurwitz(s, 1.0 - q);
  return rounded(hurwitz(s, rest) + (is_odd(s) ? -before : before));
}

// x^a e^-x / gamma(a + 1), without the cancellation that large a and x bring.
static double gamma_density(double a, double x) {
  if (a < 10) return exp(a * log(x) - x - log_gamma(a + 1.0));
  const double off = (x - a) / a;
  return exp(a * (log1p(off) - off) - stirling_rest(a)) / __builtin_sqrt(2.0 * kPi * a);
}
// The lower and upper incomplete gamma function over gamma(a).
struct Incomplete {
  double lower, upper;
};
// The upper one for a <= 1/2 and x < 3/2, where it is too small for 1 - lower: of x^a / gamma(a +
// 1) and the alternating series that follows it the leading ones are taken away beforehand.
static double upper_of_small(double a, double x) {
  const double power_less_one = expm1(a * log(x) - (log_gamma_near_two(a) - log1p(a)));
  double term = 1.0;
  double sum = 0.0;
  for (int n = 1; n <= 20; ++n) {
    term *= -x / n;
    sum += term / (a + n);
  }
  return -power_less_one - (1.0 + power_less_one) * a * sum;
}
static Incomplete incomplete_gamma(double a, double x) {
  if (a > 1e6) {
    // Temme's uniform expansion, of which large a need two terms, in eta near 0 only.
    const double off = (x - a) / a;
    const double squared = 2.0 * (off - log1p(off));
    const double size = squared > 0 ? __builtin_sqrt(squared) : 0.0;
    const double eta = off < 0 ? -size : size;
    const double scaled = size * __builtin_sqrt(0.5 * a);
    const double tail = 0.5 * erfc(scaled, scaled * scaled);
    const double correction = exp(-scaled * scaled) / __builtin_sqrt(2.0 * kPi * a) *
                              polynomial(eta < 0.1 && eta > -0.1 ? eta : 0.0,
                                         {-1.0 / 3, 1.0 / 12, -2.0 / 135, 1.0 / 864});
    const double upper = eta < 0 ? 1.0 - tail + correction : tail + correction;
    const double lower = eta < 0 ? tail - correction : 1.0 - tail - correction;
    return {lower, upper};
  }
  constexpr int kLimit = 20000;
  constexpr double kEnough = 1e-12;
  const double density = gamma_density(a, x);
  if (x < a + 1.0) {
    double term = 1.0;
    double sum = 1.0;
    for (int n = 1; n < kLimit && term > kEnough * sum; ++n) {
      term *= x / (a + n);
      sum += term;
    }
    const double lower = density * sum;
    return {lower, a <= 0.5 ? upper_of_small(a, x) : 1.0 - lower};
  }
  // Lentz's way through the continued fraction.
  constexpr double kTiny = 1e-300;
  double b = x + 1.0 - a;
  double c = 1.0 / kTiny;
  double d = 1.0 / b;
  double fraction = d;
  for (int n = 1; n < kLimit; ++n) {
    const double numerator = -n * (n - a);
    b += 2.0;
    d = 1.0 / (numerator * d + b);
    c = b + numerator / c;
    fraction *= d * c;
    const double change = d * c - 1.0;
    if (change < kEnough && change > -kEnough) break;
  }
  const double upper = density * a * fraction;
  return {1.0 - upper, upper};
}
static float igamma_f(float a, float x, bool is_upper) {
  if (is_nan(a) | is_nan(x) | !(x >= 0) | !(a >= 0)) return kQuietNan;
  float lower = -1.0f;
  if (a == 0)
    lower = x > 0 ? 1.0f : kQuietNan;
  else if (x == 0)
    lower = 0.0f;
  else if (a == kInf)
    lower = x == kInf ? kQuietNan : 0.0f;
  else if (x == kInf)
    lower = 1.0f;
  if (is_nan(lower)) return kQuietNan;
  if (lower >= 0) return is_upper ? 1.0f - lower : lower;
  const Incomplete both = incomplete_gamma(a, x);
  return rounded(is_upper ? both.upper : both.lower);
}

// ---- Bessel functions ---------------------------------------------------------------------------

// The sum of Hankel's series for order 0 or 1: even terms and odd terms, x >= 13.
struct Hankel {
  double even, odd;
};
static Hankel hankel(double x, double order_squared, double sign) {
  Hankel sum{1.0, 0.0};
  double term = 1.0;
  for (int k = 1; k <= 22; ++k) {
    term *= (4.0 * order_squared - (2 * k - 1) * (2 * k - 1)) / (8.0 * k * x);
    // Every second pair changes sign if the series is one of cosine and sine.
    const double signed_term = (k / 2) % 2 == 1 ? sign * term : term;
    (k % 2 == 0 ? sum.even : sum.odd) += signed_term;
    if (term < 1e-13 && term > -1e-13) break;
  }
  return sum;
}

// e^-x I(x) for order 0 or 1, x >= 0.
static double bessel_i_scaled(double x, int order) {
  if (x >= 16) {
    const Hankel sum = hankel(x, order, 1.0);
    return (sum.even - sum.odd) / __builtin_sqrt(2.0 * kPi * x);
  }
  const double q = 0.25 * x * x;
  double term = order == 0 ? 1.0 : 0.5 * x;
  double sum = term;
  for (int k = 1; k <= 45; ++k) {
    term *= q / (k * (k + order));
    sum += term;
  }
  return exp(-x) * sum;
}
static float i0e_f(float x) {
  if (magnitude_of(x) == kInf || is_nan(x)) return is_nan(x) ? x : 0.0f;
  return rounded(bessel_i_scaled(magnitude_of(x), 0));
}
static float i1e_f(float x) {
  if (magnitude_of(x) == kInf || is_nan(x)) return is_nan(x) ? x : with_sign_of(0.0f, x);
  return with_sign_of(rounded(bessel_i_scaled(magnitude_of(x), 1)), x);
}

// The integral of exp(-x (cosh t - 1)) cosh(order t) over t >= 0: e^x K(x), for 1.8 <= x <= 16.
// With a step of 1/5 the trapezoidal rule errs by less than 1e-12. The hyperbolic cosines follow
// each other by their addition theorem, from those of one step.
static double bessel_k_integral(double x, double cosh_step, double cosh_order_step) {
  double cosh = cosh_step, cosh_before = 1.0;
  double weight = cosh_order_step, weight_before = 1.0;
  double sum = 0.5;
  for (int i = 1; i <= 24; ++i) {
    sum += exp(-x * (cosh - 1.0)) * weight;
    const double next = 2.0 * cosh_step * cosh - cosh_before;
    cosh_before = cosh;
    cosh = next;
    const double next_weight = 2.0 * cosh_order_step * weight - weight_before;
    weight_before = weight;
    weight = next_weight;
  }
  return 0.2 * sum;
}
constexpr double kCoshFifth = 1.0200667556190759;      // cosh(1/5)
constexpr double kCoshFifteenth = 1.0022230458083543;  // cosh(1/15)

// e^x K(x) for order 0 or 1, x > 0.
static double bessel_k_scaled(double x, int order) {
  if (x > 16) {
    const Hankel sum = hankel(x, order, 1.0);
    return (sum.even + sum.odd) * __builtin_sqrt(0.5 * kPi / x);
  }
  if (x > 2) return bessel_k_integral(x, kCoshFifth, order == 0 ? 1.0 : kCoshFifth);
  // K0: the sum of q^k / k!^2 (H(k) - ln(x/2) - euler); K1 its counterpart.
  const double q = 0.25 * x * x;
  const double logarithm = log(0.5 * x) + kEuler;
  double term = order == 0 ? 1.0 : 0.5 * x;
  double harmonic = 0.0;
  double sum = order == 0 ? -logarithm : 1.0 / x + term * (logarithm - 0.5);
  for (int k = 1; k <= 16; ++k) {
    term *= q / (k * (k + order));
    harmonic += 1.0 / k;
    const double mean = harmonic + 0.5 / (k + 1);
    sum += order == 0 ? term * (harmonic - logarithm) : term * (logarithm - mean);
  }
  return exp(x) * sum;
}
static float bessel_k_scaled_f(float x, int order) {
  if (!(x > 0)) return x == 0 ? kInf : kQuietNan;
  return x == kInf ? 0.0f : rounded(bessel_k_scaled(x, order));
}

// J(x) and Y(x) for order 0 or 1, x > 0.
struct Bessel {
  double j, y;
};
static Bessel bessel(float x, int order) {
  const double d = x;
  if (d > 13.5) {
    const Hankel sum = hankel(d, order, -1.0);
    const Angle angle = angle_for(x);
    const double s = sin_of(angle);
    const double c = cos_of(angle);
    // Cosine and sine of x - pi/4 - order pi/2, times sqrt(2).
    const double cosine = order == 0 ? c + s : s - c;
    const double sine = order == 0 ? s - c : -(c + s);
    const double size = 1.0 / __builtin_sqrt(kPi * d);
    return {size * (sum.even * cosine - sum.odd * sine),
            size * (sum.even * sine + sum.odd * cosine)};
  }
  const double q = -0.25 * d * d;
  const double logarithm = log(0.5 * d) + kEuler;
  double term = order == 0 ? 1.0 : 0.5 * d;
  double harmonic = 0.0;
  double j = term;
  double y = order == 0 ? 0.0 : -0.5 * term;
  for (int k = 1; k <= 45; ++k) {
    term *= q / (k * (k + order));
    harmonic += 1.0 / k;
    j += term;
    y -= order == 0 ? term * harmonic : term * (harmonic + 0.5 / (k + 1));
  }
  const double pole = order == 0 ? 0.0 : -1.0 / d;
  return {j, 2.0 / kPi * (j * logarithm + y + pole)};
}
// At infinity NaN, as PyTorch has it for all four.
static float bessel_j_f(float x, int order) {
  const float a = magnitude_of(x);
  if (!(a < kInf)) return kQuietNan;
  if (a == 0) return order == 0 ? 1.0f : x;
  const float result = rounded(bessel(a, order).j);
  return order == 1 && sign_of(x) != 0 ? -result : result;
}
static float bessel_y_f(float x, int order) {
  if (!(x > 0 && x < kInf)) return x == 0 ? -kInf : kQuietNan;
  return rounded(bessel(x, order).y);
}

// Airy's function Ai.
static float airy_ai_f(float x) {
  if (is_nan(x) | (magnitude_of(x) == kInf)) return kQuietNan;
  const double d = x;
  if (d <= 2 && d >= -7.5) {
    constexpr double kAtZero = 0.35502805388781724;
    constexpr double kSlope = 0.25881940379280680;
    const double cube = d * d * d;
    double even = 1.0, odd = d;
    double sum = kAtZero * even - kSlope * odd;
    for (int k = 1; k <= 40; ++k) {
      even *= cube / ((3 * k - 1) * (3 * k));
      odd *= cube / ((3 * k) * (3 * k + 1));
      sum += kAtZero * even - kSlope * odd;
    }
    return rounded(sum);
  }
  const double a = magnitude_of(x);
  const double zeta = 2.0 / 3.0 * a * __builtin_sqrt(a);
  if (d > 0) {
    // sqrt(x / 3) / pi times K of order 1/3 at zeta.
    double k = 0.0;
    if (zeta > 16) {
      const Hankel sum = hankel(zeta, 1.0 / 9, 1.0);
      k = (sum.even + sum.odd) * __builtin_sqrt(0.5 * kPi / zeta);
    } else {
      k = bessel_k_integral(zeta, kCoshFifth, kCoshFifteenth);
    }
    return rounded(__builtin_sqrt(a / 3.0) / kPi * k * exp(-zeta));
  }
  if (zeta > 0x1p40) return kQuietNan;  // a double can't tell the phase
  const Hankel sum = hankel(zeta, 1.0 / 9, -1.0);
  const Angle angle = reduce_angle(zeta - 0.25 * kPi);
  const double wave = sum.even * cos_of(angle) - sum.odd * sin_of(angle);
  return rounded(wave * kInverseSqrtPi / __builtin_sqrt(__builtin_sqrt(a)));
}

// ---- Orthogonal polynomials ---------------------------------------------------------------------

// The degree, a float by PyTorch's interface, cut to a whole number.
SPYRE_INLINE int64_t degree_of(float n) {
  const float bounded = n > 0x1p60f ? 0x1p60f : n;
  return bounded >= 1 ? static_cast<int64_t>(bounded) : 0;
}
// More terms than this the card doesn't sum one by one.
constexpr int64_t kLargestDegree = 100000;
// Where a recurrence only grows.
constexpr double kHuge = 1e290;
SPYRE_INLINE bool is_huge(double x) { return x > kHuge || x < -kHuge; }

enum class Kind : uint8_t { First, Second, Third, Fourth };

// A Chebyshev polynomial of x > 1 as the hyperbolic functions that it is a quotient of.
static double chebyshev_outside(double x, double n, Kind kind) {
  const double above = x - 1.0;
  const double angle = log1p(above + __builtin_sqrt(above * (above + 2.0)));
  const double shift = kind == Kind::First ? 0.0 : kind == Kind::Second ? 1.0 : 0.5;
  const double sign = kind == Kind::Second || kind == Kind::Fourth ? -1.0 : 1.0;
  // Twice the cosine or the sine. The first kind has no divisor.
  const auto twice = [sign](double a) { return exp(a) + sign * exp(-a); };
  const double divisor = kind == Kind::First ? 2.0 : twice(shift * angle);
  return twice((n + shift) * angle) / divisor;
}
static float chebyshev_f(float x, float n, Kind kind) {
  if (is_nan(x) | is_nan(n)) return kQuietNan;
  if (n <= -1) return 0.0f;
  // Of a negative x it is that of the magnitude, with the sign of the degree; the third and the
  // fourth kind change places.
  if (x < 0) {
    const bool is_swapped = kind == Kind::Third || kind == Kind::Fourth;
    const Kind other = kind == Kind::Third ? Kind::Fourth : Kind::Third;
    const float mirrored = chebyshev_f(-x, n, is_swapped ? other : kind);
    return degree_of(n) % 2 != 0 ? -mirrored : mirrored;
  }
  const int64_t degree = degree_of(n);
  const double d = x;
  if (d == 1) {
    const auto count = static_cast<double>(degree);
    const double ends[] = {1.0, count + 1.0, 1.0, 2.0 * count + 1.0};
    return rounded(ends[static_cast<int>(kind)]);
  }
  if (d > 1 && degree > 64) {
    return rounded(chebyshev_outside(d, static_cast<double>(degree), kind));
  }
  if (degree > kLargestDegree) return kQuietNan;
  const double firsts[] = {d, 2.0 * d, 2.0 * d - 1.0, 2.0 * d + 1.0};
  double before = 1.0;
  double value = degree == 0 ? 1.0 : firsts[static_cast<int>(kind)];
  for (int64_t k = 2; k <= degree && !is_huge(value); ++k) {
    const double next = 2.0 * d * value - before;
    before = value;
    value = next;
  }
  return rounded(value);
}

// Hermite's polynomials: PyTorch ends at a degree of 128 in fp32, and so do we.
static float hermite_f(float x, float n, double scale) {
  if (is_nan(x) | is_nan(n)) return kQuietNan;
  if (n <= -1) return 0.0f;
  if (n > 128) return kQuietNan;
  const int64_t degree = degree_of(n);
  const double d = scale * magnitude_of(x);
  double before = 1.0;
  double value = degree == 0 ? 1.0 : d;
  for (int64_t k = 1; k < degree && !is_huge(value); ++k) {
    const double next = d * value - scale * static_cast<double>(k) * before;
    before = value;
    value = next;
  }
  return rounded((x < 0 && degree % 2 != 0) ? -value : value);
}
static float laguerre_f(float x, float n) {
  if (is_nan(x) | is_nan(n)) return kQuietNan;
  if (n <= -1) return 0.0f;
  const int64_t degree = degree_of(n);
  if (x == 0 || degree == 0) return 1.0f;
  if (degree > kLargestDegree) return kQuietNan;
  const double d = x;
  double before = 1.0;
  double value = 1.0 - d;
  for (int64_t k = 1; k < degree && !is_huge(value); ++k) {
    const auto count = static_cast<double>(k);
    const double next = ((2.0 * count + 1.0 - d) * value - count * before) / (count + 1.0);
    before = value;
    value = next;
  }
  if (is_huge(value)) return x > 0 && degree % 2 != 0 ? -kInf : kInf;
  return rounded(value);
}
static float legendre_f(float x, float n) {
  if (is_nan(x) | is_nan(n)) return kQuietNan;
  if (n <= -1) return 0.0f;
  const int64_t degree = degree_of(n);
  const double d = magnitude_of(x);
  double value = degree == 0 ? 1.0 : d;
  double before = 1.0;
  if (d != 1 && degree > kLargestDegree && d < 2) return kQuietNan;
  for (int64_t k = 1; d != 1 && k < degree && !is_huge(value); ++k) {
    const auto count = static_cast<double>(k);
    const double next = ((2.0 * count + 1.0) * d * value - count * before) / (count + 1.0);
    before = value;
    value = next;
  }
  return rounded((x < 0 && degree % 2 != 0) ? -value : value);
}

}  // namespace math

// ---- The operations -----------------------------------------------------------------------------

// Moves by `step` units of fp32's last place (less than 2^22), and from zero to the smallest
// number: formats with fewer bits have larger steps.
SPYRE_INLINE F next_after(F x, F toward, W step, F smallest) {
  const W units = step & 0x3FFFFFu;
  const W bits = bits_as<W>(x);
  const W magnitude = bits & kMagnitude;
  const bool is_outwards = (toward > x) == (bits >> 31 == 0);
  const W inwards = magnitude - smaller(units, magnitude);
  const W moved = is_outwards ? smaller(magnitude + units, kInfinity) : inwards;
  const F from_zero = math::with_sign_of(smallest, toward);
  const F result = magnitude == 0 ? from_zero : bits_as<F>((bits & kSignBit) | moved);
  const F unequal = (x != x) | (toward != toward) ? math::kQuietNan : result;
  return x == toward ? toward : unequal;
}

SPYRE_INLINE I greatest_divisor(I x, I y) {
  W a = x < 0 ? 0u - bits_as<W>(x) : bits_as<W>(x);
  W b = y < 0 ? 0u - bits_as<W>(y) : bits_as<W>(y);
  while (b != 0) {
    const W rest = a % b;
    a = b;
    b = rest;
  }
  return bits_as<I>(a);
}

SPYRE_OP1_RARE(tan, math::tan_f(x), math::is_large_angle(x), math::tan_large(x))
SPYRE_OP1(asin, F, F, math::asin_f(x))
SPYRE_OP1(acos, F, F, math::rounded(math::acos(x)))
SPYRE_OP1(sinh, F, F, math::sinh_f(x))
SPYRE_OP1(cosh, F, F, math::cosh_f(x))
SPYRE_OP1(asinh, F, F, math::asinh_f(x))
SPYRE_OP1(acosh, F, F, math::acosh_f(x))
SPYRE_OP1(atanh, F, F, math::atanh_f(x))
SPYRE_OP1(erfc, F, F, math::erfc_f(x))
SPYRE_OP1(erfcx, F, F, math::erfcx_f(x))
SPYRE_OP1(erfinv, F, F, math::erfinv_f(x))
SPYRE_OP1(ndtri, F, F, math::ndtri_f(x))
SPYRE_OP1(lgamma, F, F, math::lgamma_f(x))
SPYRE_OP1(digamma, F, F, math::digamma_f(x))
SPYRE_OP1(i0e, F, F, math::i0e_f(x))
SPYRE_OP1(i1e, F, F, math::i1e_f(x))
SPYRE_OP1(k0e, F, F, math::bessel_k_scaled_f(x, 0))
SPYRE_OP1(k1e, F, F, math::bessel_k_scaled_f(x, 1))
SPYRE_OP1(bessel_j0, F, F, math::bessel_j_f(x, 0))
SPYRE_OP1(bessel_j1, F, F, math::bessel_j_f(x, 1))
SPYRE_OP1(bessel_y0, F, F, math::bessel_y_f(x, 0))
SPYRE_OP1(bessel_y1, F, F, math::bessel_y_f(x, 1))
SPYRE_OP1(airy_ai, F, F, math::airy_ai_f(x))
SPYRE_OP2(hypot, F, F, F,
          (math::magnitude_of(x) == math::kInf) | (math::magnitude_of(y) == math::kInf)
              ? math::kInf
              : math::rounded(__builtin_sqrt(static_cast<double>(x) * static_cast<double>(x) +
                                             static_cast<double>(y) * static_cast<double>(y))))
SPYRE_OP2(copysign, W, W, W, (x & kMagnitude) | (y & kSignBit))
SPYRE_OP2(igamma, F, F, F, math::igamma_f(x, y, false))
SPYRE_OP2(igammac, F, F, F, math::igamma_f(x, y, true))
SPYRE_OP2(zeta, F, F, F, math::zeta_f(x, y))
SPYRE_OP2(chebyshev_t, F, F, F, math::chebyshev_f(x, y, math::Kind::First))
SPYRE_OP2(chebyshev_u, F, F, F, math::chebyshev_f(x, y, math::Kind::Second))
SPYRE_OP2(chebyshev_v, F, F, F, math::chebyshev_f(x, y, math::Kind::Third))
SPYRE_OP2(chebyshev_w, F, F, F, math::chebyshev_f(x, y, math::Kind::Fourth))
SPYRE_OP2(hermite_h, F, F, F, math::hermite_f(x, y, 2.0))
SPYRE_OP2(hermite_he, F, F, F, math::hermite_f(x, y, 1.0))
SPYRE_OP2(laguerre, F, F, F, math::laguerre_f(x, y))
SPYRE_OP2(legendre, F, F, F, math::legendre_f(x, y))
SPYRE_OP4(nextafter, F, F, W, F, F, next_after(x, y, z, w))
SPYRE_OP2(gcd, I, I, I, greatest_divisor(x, y))
