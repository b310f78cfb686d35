// Reductions: an operation that combines two values, accumulated over sticks and then over lanes.
//
// The order is the same in every version: `accumulate` takes its inputs one after the other, each
// element for itself; `combine_lanes` halves, the lower half first.

namespace reduction {

struct Sum {
  using Type = F;
  static constexpr Word kNeutral = 0;
  template <typename T>
  SPYRE_INLINE void combine(T& a, const T& b) {
    a = a + b;
  }
};
// The sum of x * x, each product rounded. `absorb` takes in an element, `combine` joins sums.
struct SumSquares : Sum {
  template <typename T>
  SPYRE_INLINE void absorb(T& a, const T& b) {
    a = a + b * b;
  }
};
struct Product {
  using Type = F;
  static constexpr Word kNeutral = 0x3F800000u;
  template <typename T>
  SPYRE_INLINE void combine(T& a, const T& b) {
    a = a * b;
  }
};
// NaN wins, as in `maximum` and `minimum`; of equal values the second.
struct Largest {
  using Type = F;
  static constexpr Word kNeutral = kSignBit | kInfinity;
  template <typename T>
  SPYRE_INLINE void combine(T& a, const T& b) {
    a = (a > b) | (a != a) ? a : b;
  }
  template <typename T>
  SPYRE_INLINE void combine_finite(T& a, const T& b) {
    a = a <= b ? b : a;
  }
};
struct Smallest {
  using Type = F;
  static constexpr Word kNeutral = kInfinity;
  template <typename T>
  SPYRE_INLINE void combine(T& a, const T& b) {
    a = (a < b) | (a != a) ? a : b;
  }
  template <typename T>
  SPYRE_INLINE void combine_finite(T& a, const T& b) {
    a = a >= b ? b : a;
  }
};
// Unsigned: sums and products wrap.
struct SumInt : Sum {
  using Type = W;
};
struct ProductInt : Product {
  using Type = W;
  static constexpr Word kNeutral = 1;
};
struct LargestInt {
  using Type = I;
  static constexpr Word kNeutral = 0x80000000u;
  template <typename T>
  SPYRE_INLINE void combine(T& a, const T& b) {
    a = a > b ? a : b;
  }
};
struct SmallestInt {
  using Type = I;
  static constexpr Word kNeutral = 0x7FFFFFFFu;
  template <typename T>
  SPYRE_INLINE void combine(T& a, const T& b) {
    a = a < b ? a : b;
  }
};

// As many words as fit a handful of vector registers: the elements of a stick of 16-bit values.
constexpr int64_t kHeldWords = 64;

// `is_finite`: the value is a number, though the sum may be anything.
template <bool is_finite, typename Op, typename T>
SPYRE_INLINE void absorb(T& sum, const T& value) {
  if constexpr (requires { Op::absorb(sum, value); }) {
    Op::absorb(sum, value);
  } else if constexpr (is_finite && requires { Op::combine_finite(sum, value); }) {
    Op::combine_finite(sum, value);
  } else {
    Op::combine(sum, value);
  }
}

template <typename Codec, typename Op>
static void accumulate(const std::byte* from, int64_t stride, int64_t count, Word* words,
                       int64_t n) {
  using Stored = typename Loose<typename Codec::Stored>::Type;
  using T = typename Op::Type;
  for (int64_t start = 0; start < n; start += kHeldWords) {
    const int64_t held = n - start < kHeldWords ? n - start : kHeldWords;
    const std::byte* run = from + start * static_cast<int64_t>(sizeof(Stored));
    T sums[kHeldWords];
    for (int64_t i = 0; i < held; ++i) sums[i] = bits_as<T>(words[start + i]);
    for (int64_t k = 0; k < count; ++k, run += stride) {
      const auto* values = reinterpret_cast<const Stored*>(run);
      if (held == kHeldWords) {
        for (int64_t i = 0; i < kHeldWords; ++i)
          absorb<false, Op>(sums[i], bits_as<T>(Codec::widen(values[i])));
      } else {
        for (int64_t i = 0; i < held; ++i)
          absorb<false, Op>(sums[i], bits_as<T>(Codec::widen(values[i])));
      }
    }
    for (int64_t i = 0; i < held; ++i) words[start + i] = bits_as<Word>(sums[i]);
  }
}

// Sticks with a NaN-infinity symbol, which are rare, take the plain loop.
template <typename Op>
static void accumulate_sen169(const std::byte* from, int64_t stride, int64_t count, Word* words,
                              int64_t n) {
#if SPYRE_FMA_WIDTH != 0
  typedef F Vector __attribute__((vector_size(4 * SPYRE_FMA_WIDTH)));
  constexpr int kVectors = kHeldWords / SPYRE_FMA_WIDTH;
  for (; n >= kHeldWords; n -= kHeldWords, words += kHeldWords, from += kStickBytes) {
    Vector sums[kVectors];
    __builtin_memcpy(sums, words, sizeof(sums));
    uint32_t symbols = 0;
    const std::byte* run = from;
    for (int64_t k = 0; k < count; ++k, run += stride) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; i += 2) {
        const Widened widened = widen_numbers(run + 2 * SPYRE_FMA_WIDTH * i, symbols);
        absorb<true, Op>(sums[i], Vector(widened.first));
        absorb<true, Op>(sums[i + 1], Vector(widened.second));
      }
    }
    if (symbols != 0) {
      accumulate<Sen169, Op>(from, stride, count, words, kHeldWords);
    } else {
      __builtin_memcpy(words, sums, sizeof(sums));
    }
  }
#endif
  accumulate<Sen169, Op>(from, stride, count, words, n);
}

// Partial results of another core.
template <typename Op>
static void merge(const Word* from, Word* words, int64_t n) {
  using T = typename Op::Type;
  for (int64_t i = 0; i < n; ++i) {
    T sum = bits_as<T>(words[i]);
    Op::combine(sum, bits_as<T>(from[i]));
    words[i] = bits_as<Word>(sum);
  }
}

// Lanes l and l + half for half = lanes/2, lanes/4, ... 1; the result of row r goes to words[r].
// The last lanes of a row stay in a register of the host's: of wider vectors GCC makes memory.
template <typename Op>
static void combine_lanes(Word* words, int64_t rows, int lanes) {
  using T = typename Op::Type;
  constexpr int kWidth = SPYRE_FMA_WIDTH == 16 ? 16 : SPYRE_FMA_WIDTH == 8 ? 8 : 4;
  constexpr int kMostLanes = kStickBytes;
  typedef T Vector __attribute__((vector_size(4 * kWidth)));
  if (lanes == 1) return;
  for (int64_t row = 0; row < rows; ++row) {
    const Word* const lane = words + row * lanes;
    Vector held[kMostLanes / kWidth];
    const int vectors = lanes / kWidth;
    for (int i = 0; i < vectors; ++i) __builtin_memcpy(&held[i], lane + i * kWidth, sizeof(Vector));
    for (int half = vectors / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) Op::combine(held[i], held[i + half]);
    }
    Vector a = held[0];
#define SPYRE_FOLD(...) Op::combine(a, Vector(__builtin_shufflevector(a, a, __VA_ARGS__)))
#if SPYRE_FMA_WIDTH == 16
    SPYRE_FOLD(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    SPYRE_FOLD(4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
    SPYRE_FOLD(2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1);
    SPYRE_FOLD(1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0);
#elif SPYRE_FMA_WIDTH == 8
    SPYRE_FOLD(4, 5, 6, 7, 0, 1, 2, 3);
    SPYRE_FOLD(2, 3, 0, 1, 2, 3, 0, 1);
    SPYRE_FOLD(1, 0, 1, 0, 1, 0, 1, 0);
#else
    SPYRE_FOLD(2, 3, 0, 1);
    SPYRE_FOLD(1, 0, 1, 0);
#endif
#undef SPYRE_FOLD
    words[row] = bits_as<Word>(static_cast<T>(a[0]));
  }
}

// The one NaN for all others; a mean is divided by its count.
static void finish_float(Word* words, int64_t n, Word) {
  for (int64_t i = 0; i < n; ++i) words[i] = to_word(bits_as<F>(words[i]));
}
static void finish_mean(Word* words, int64_t n, Word count) {
  const F divisor = bits_as<F>(count);
  for (int64_t i = 0; i < n; ++i) words[i] = to_word(bits_as<F>(words[i]) / divisor);
}
static void finish_int(Word*, int64_t, Word) {}

template <typename Op>
static consteval Reduction make_reduction(void (*finish)(Word*, int64_t, Word)) {
  Reduction reduction{};
  reduction.neutral = Op::kNeutral;
  reduction.merge = &merge<Op>;
  reduction.combine_lanes = &combine_lanes<Op>;
  reduction.finish = finish;
  if constexpr (__is_same(typename Op::Type, F)) {
    reduction.words = &accumulate<Fp32, Op>;
    reduction.accumulate[static_cast<size_t>(DataFormat::IEEE_FP32)] = &accumulate<Fp32, Op>;
    reduction.accumulate[static_cast<size_t>(DataFormat::SEN169_FP16)] = &accumulate_sen169<Op>;
  } else {
    reduction.words = &accumulate<Int32, Op>;
    reduction.accumulate[static_cast<size_t>(DataFormat::IEEE_INT32)] = &accumulate<Int32, Op>;
    reduction.accumulate[static_cast<size_t>(DataFormat::SENUINT32)] = &accumulate<Int32, Op>;
  }
  return reduction;
}

static consteval void put_all(Table& table) {
  const auto put = [&](Opcode opcode, const Reduction& reduction) {
    table.reduction[static_cast<size_t>(opcode) - kFirstReduction] = reduction;
  };
  put(Opcode::sum, make_reduction<Sum>(&finish_float));
  put(Opcode::mean, make_reduction<Sum>(&finish_mean));
  put(Opcode::sum_squares, make_reduction<SumSquares>(&finish_float));
  put(Opcode::amax, make_reduction<Largest>(&finish_float));
  put(Opcode::amin, make_reduction<Smallest>(&finish_float));
  put(Opcode::prod, make_reduction<Product>(&finish_float));
  put(Opcode::sum_int, make_reduction<SumInt>(&finish_int));
  put(Opcode::amax_int, make_reduction<LargestInt>(&finish_int));
  put(Opcode::amin_int, make_reduction<SmallestInt>(&finish_int));
  put(Opcode::prod_int, make_reduction<ProductInt>(&finish_int));
}

}  // namespace reduction
