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

// SEN169 where the NaN-infinity symbol does not occur, which makes widening half as long.
struct FiniteSen169 {
  using Stored = Sen169::Stored;
  SPYRE_INLINE uint32_t widen(Stored stored) {
    const uint32_t number = Sen169::spread(stored);
    return (number & kMagnitude) == 0 ? number : number + Sen169::kRebias;
  }
};

template <typename Codec, typename Op>
SPYRE_INLINE void add(typename Op::Type& sum, typename Codec::Stored stored) {
  const auto value = bits_as<typename Op::Type>(Codec::widen(stored));
  if constexpr (requires { Op::absorb(sum, value); }) {
    Op::absorb(sum, value);
  } else if constexpr (__is_same(Codec, FiniteSen169) &&
                       requires { Op::combine_finite(sum, value); }) {
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
        for (int64_t i = 0; i < kHeldWords; ++i) add<Codec, Op>(sums[i], values[i]);
      } else {
        for (int64_t i = 0; i < held; ++i) add<Codec, Op>(sums[i], values[i]);
      }
    }
    for (int64_t i = 0; i < held; ++i) words[start + i] = bits_as<Word>(sums[i]);
  }
}

// Does the symbol occur? Whole sticks only.
static bool has_symbol(const std::byte* from, int64_t stride, int64_t count, int64_t n) {
  using Stored = typename Loose<Sen169::Stored>::Type;
  uint16_t largest[kHeldWords] = {};
  for (int64_t k = 0; k < count; ++k, from += stride) {
    const auto* values = reinterpret_cast<const Stored*>(from);
    for (int64_t start = 0; start < n; start += kHeldWords, values += kHeldWords) {
      for (int64_t i = 0; i < kHeldWords; ++i) {
        const auto magnitude = static_cast<uint16_t>(values[i] & 0x7FFF);
        largest[i] = largest[i] < magnitude ? magnitude : largest[i];
      }
    }
  }
  uint16_t all = 0;
  for (int64_t i = 0; i < kHeldWords; ++i) all = all < largest[i] ? largest[i] : all;
  return all == Sen169::kSymbol;
}

// Looks for the symbol first, in pieces that stay in L1 until they are accumulated.
template <typename Op>
static void accumulate_sen169(const std::byte* from, int64_t stride, int64_t count, Word* words,
                              int64_t n) {
  constexpr int64_t kPiece = 8192;  // elements
  const int64_t rows = kPiece / n > 1 ? kPiece / n : 1;
  for (int64_t k = 0; k < count; k += rows) {
    const int64_t some = count - k < rows ? count - k : rows;
    const std::byte* piece = from + k * stride;
    if (n % kHeldWords != 0 || has_symbol(piece, stride, some, n)) {
      accumulate<Sen169, Op>(piece, stride, some, words, n);
    } else {
      accumulate<FiniteSen169, Op>(piece, stride, some, words, n);
    }
  }
}

// Lanes l and l + half for half = lanes/2, lanes/4, ... 1; the result of row r goes to words[r].
// The last 16 lanes of a row stay in a register.
template <typename Op>
static void combine_lanes(Word* words, int64_t rows, int lanes) {
  using T = typename Op::Type;
  typedef T Vector __attribute__((vector_size(64)));
  constexpr int kWidth = 16;
  if (lanes == 1) return;
  for (int64_t row = 0; row < rows; ++row) {
    const Word* const lane = words + row * lanes;
    Vector held[kStickBytes / kWidth];
    const int vectors = lanes / kWidth;
    for (int i = 0; i < vectors; ++i) __builtin_memcpy(&held[i], lane + i * kWidth, sizeof(Vector));
    for (int half = vectors / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) Op::combine(held[i], held[i + half]);
    }
    Vector& a = held[0];
#define SPYRE_FOLD(...) Op::combine(a, Vector(__builtin_shufflevector(a, a, __VA_ARGS__)))
    SPYRE_FOLD(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    SPYRE_FOLD(4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
    SPYRE_FOLD(2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1);
    SPYRE_FOLD(1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0);
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
