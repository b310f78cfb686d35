// The inner product of blocks: C += A * B, one fused multiply-add per element of k, in k order.
//
// A tile of C stays in registers while k runs: per element of k a few vectors of B, each multiplied
// by one element of A per row. An accumulator belongs to one element of C from the first k to the
// last, so the order of its additions, and with it every bit, does not depend on the tile's size.

#include "widen.inl"

namespace matmul {

constexpr int kWidth = SPYRE_FMA_WIDTH == 0 ? 4 : SPYRE_FMA_WIDTH;  // floats of a vector
// Vectors of a tile: AVX-512 has 32 registers, the others 16.
constexpr int kAccumulators = kWidth == 16 ? 24 : 12;
constexpr int kWide = 4;    // vectors of a row of the tile: few rows of A,
constexpr int kNarrow = 2;  // or many

typedef float Vector __attribute__((vector_size(kWidth * 4), may_alias));
// As it lies in memory, at any address.
typedef float Stored __attribute__((vector_size(kWidth * 4), may_alias, aligned(4)));

SPYRE_INLINE Vector broadcast(Word word) {
#if SPYRE_FMA_WIDTH == 16
  return _mm512_set1_ps(bits_as<float>(word));
#elif SPYRE_FMA_WIDTH == 8
  return _mm256_set1_ps(bits_as<float>(word));
#else
  const auto value = bits_as<float>(word);
  return Vector{value, value, value, value};
#endif
}

SPYRE_INLINE Vector multiply_add(Vector a, Vector b, Vector c) {
#if SPYRE_FMA_WIDTH == 16
  return _mm512_fmadd_ps(a, b, c);
#elif SPYRE_FMA_WIDTH == 8
  return _mm256_fmadd_ps(a, b, c);
#else
  Vector sum;
  for (int i = 0; i < kWidth; ++i) sum[i] = fused(a[i], b[i], c[i]);
  return sum;
#endif
}

SPYRE_INLINE Vector load_vector(const Word* from) { return *reinterpret_cast<const Stored*>(from); }
SPYRE_INLINE void store_vector(Vector vector, Word* to) { *reinterpret_cast<Stored*>(to) = vector; }

// The one NaN of the card in place of any other.
SPYRE_INLINE Vector canonical(Vector vector) { return vector == vector ? vector : broadcast(kNan); }

// kRows of A times kVectors of B's columns.
template <int kRows, int kVectors>
static void multiply_tile(const Product& product, const Word* a, const Word* b, Word* c) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = product.is_first ? Vector{} : load_vector(c + i * product.columns + j * kWidth);
    }
  }
  for (int64_t k = 0; k < product.k; ++k) {
    Vector row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = load_vector(b + j * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vector factor = broadcast(a[i * kProductStride + k]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = multiply_add(factor, row[j], sum[i][j]);
    }
    b += product.b_stride;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      store_vector(product.is_last ? canonical(sum[i][j]) : sum[i][j],
                   c + i * product.columns + j * kWidth);
    }
  }
}

// A tile of `rows` rows, at most kRows.
template <int kRows, int kVectors>
SPYRE_INLINE void multiply_rows(const Product& product, int rows, const Word* a, const Word* b,
                                Word* c) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_rows<kRows - 1, kVectors>(product, rows, a, b, c);
  }
  multiply_tile<kRows, kVectors>(product, a, b, c);
}

template <int kVectors>
static void multiply_columns(const Product& product) {
  constexpr int kRows = kAccumulators / kVectors;
  constexpr int kColumns = kVectors * kWidth;
  // Tiles of nearly the same height: a last one of few rows would wait for its own results.
  const int tiles = (product.rows + kRows - 1) / kRows;
  for (int column = 0; column < product.columns; column += kColumns) {
    for (int tile = 0; tile < tiles; ++tile) {
      const int first = product.rows * tile / tiles;
      const int rows = product.rows * (tile + 1) / tiles - first;
      multiply_rows<kRows, kVectors>(product, rows, product.a + first * kProductStride,
                                     product.b + column,
                                     product.c + first * product.columns + column);
    }
  }
}

static void multiply(const Product& product) {
  if (product.rows <= kAccumulators / kWide && product.columns >= kWide * kWidth) {
    multiply_columns<kWide>(product);
  } else {
    multiply_columns<kNarrow>(product);
  }
}

// ---- Few rows: B straight from where it is stored ----------------------------------------------

#if SPYRE_FMA_WIDTH != 0
constexpr int kStreamRows = kAccumulators / kWide;
constexpr int kStreamColumns = kWide * kWidth;
constexpr int kStreamAhead = 32;  // rows that memory is asked for ahead of their use

// How kStreamColumns columns of a format are widened into registers. If `rare` is set, numbers
// turned up that it can't do: the tile is computed again from its start by `Careful`.
struct AnySen169 {
  static constexpr int kBytes = 2;
  using Careful = AnySen169;
  SPYRE_INLINE void widen(const std::byte* from, Vector* row, uint32_t&) {
#pragma GCC unroll 2
    for (int j = 0; j < kWide / 2; ++j) {
      const Widened widened = widen_any(from + j * Widened::kElements * 2);
      row[2 * j] = widened.first;
      row[2 * j + 1] = widened.second;
    }
  }
};

struct Sen169Numbers {  // without symbols
  static constexpr int kBytes = 2;
  using Careful = AnySen169;
  SPYRE_INLINE void widen(const std::byte* from, Vector* row, uint32_t& rare) {
#pragma GCC unroll 2
    for (int j = 0; j < kWide / 2; ++j) {
      const Widened widened = widen_numbers(from + j * Widened::kElements * 2, rare);
      row[2 * j] = widened.first;
      row[2 * j + 1] = widened.second;
    }
  }
};

// kWidth bytes as 32-bit integers, the sign of each in all of its upper bits; and as floats.
#if SPYRE_FMA_WIDTH == 16
using Ints = __m512i;
SPYRE_INLINE Ints load_bytes(const std::byte* from) {
  return _mm512_maskz_cvtepi8_epi32(0xFFFF,
                                    _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from)));
}
SPYRE_INLINE Vector as_floats(Ints ints) { return _mm512_maskz_cvtepi32_ps(0xFFFF, ints); }
SPYRE_INLINE Ints all(int value) { return _mm512_set1_epi32(value); }
SPYRE_INLINE Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
SPYRE_INLINE Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
SPYRE_INLINE Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
template <int kBits>
SPYRE_INLINE Ints shifted(Ints ints) {
  return _mm512_maskz_slli_epi32(0xFFFF, ints, kBits);
}
// `then` where a > b.
SPYRE_INLINE Ints where_above(Ints a, Ints b, Ints then, Ints otherwise) {
  return _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(a, b), otherwise, then);
}
SPYRE_INLINE Ints bits_of(Vector vector) { return _mm512_castps_si512(vector); }
SPYRE_INLINE Vector floats_of(Ints bits) { return _mm512_castsi512_ps(bits); }
#else
using Ints = __m256i;
SPYRE_INLINE Ints load_bytes(const std::byte* from) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(from)));
}
SPYRE_INLINE Vector as_floats(Ints ints) { return _mm256_cvtepi32_ps(ints); }
SPYRE_INLINE Ints all(int value) { return _mm256_set1_epi32(value); }
SPYRE_INLINE Ints both(Ints a, Ints b) { return _mm256_and_si256(a, b); }
SPYRE_INLINE Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
SPYRE_INLINE Ints plus(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
template <int kBits>
SPYRE_INLINE Ints shifted(Ints ints) {
  return _mm256_slli_epi32(ints, kBits);
}
SPYRE_INLINE Ints where_above(Ints a, Ints b, Ints then, Ints otherwise) {
  return _mm256_blendv_epi8(otherwise, then, _mm256_cmpgt_epi32(a, b));
}
SPYRE_INLINE Ints bits_of(Vector vector) { return _mm256_castps_si256(vector); }
SPYRE_INLINE Vector floats_of(Ints bits) { return _mm256_castsi256_ps(bits); }
#endif

struct Int8Columns {
  static constexpr int kBytes = 1;
  using Careful = Int8Columns;
  SPYRE_INLINE void widen(const std::byte* from, Vector* row, uint32_t&) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) row[j] = as_floats(load_bytes(from + j * kWidth));
  }
};

// What `Format::widen` does, for a vector.
template <typename Format>
struct Fp8Columns {
  static constexpr int kBytes = 1;
  using Careful = Fp8Columns;
  static constexpr int kSubnormals = 1 << (23 - Format::kDropped);  // codes without an exponent
  static constexpr int kLargest = Format::kOverflow - 1;
  static constexpr bool kHasInfinity = Format::kOverflow == Format::kTop;

  SPYRE_INLINE Vector widen_vector(Ints stored) {
    const float unit = bits_as<float>(Format::kSmallestNormal) / kSubnormals;
    const Ints m = both(stored, all(0x7F));
    const Ints normal = plus(shifted<Format::kDropped>(m), all(Format::kRebias << 23));
    const Ints subnormal = bits_of(as_floats(m) * broadcast(bits_as<Word>(unit)));
    Ints magnitude = where_above(all(kSubnormals), m, subnormal, normal);
    if (kHasInfinity) magnitude = where_above(m, all(kLargest), all(kInfinity), magnitude);
    constexpr int kLargestButNan = kHasInfinity ? kLargest + 1 : kLargest;
    magnitude = where_above(m, all(kLargestButNan), all(kNan), magnitude);
    return floats_of(either(magnitude, both(stored, all(static_cast<int>(kSignBit)))));
  }
  SPYRE_INLINE void widen(const std::byte* from, Vector* row, uint32_t&) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) row[j] = widen_vector(load_bytes(from + j * kWidth));
  }
};

template <typename Columns, int kRows>
static void stream_tile(const Product& product, const std::byte* b, const Word* a, Word* c) {
  Vector sum[kRows][kWide];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) {
      sum[i][j] = product.is_first ? Vector{} : load_vector(c + i * product.columns + j * kWidth);
    }
  }
  uint32_t rare = 0;
  const std::byte* from = b;
  for (int64_t k = 0; k < product.k; ++k) {
    Vector row[kWide];
    Columns::widen(from, row, rare);
    constexpr int kLine = 64;
#pragma GCC unroll 2
    for (int byte = 0; byte < kStreamColumns * Columns::kBytes; byte += kLine) {
      __builtin_prefetch(from + byte + kStreamAhead * product.b_stride);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vector factor = broadcast(a[i * kProductStride + k]);
#pragma GCC unroll 4
      for (int j = 0; j < kWide; ++j) sum[i][j] = multiply_add(factor, row[j], sum[i][j]);
    }
    from += product.b_stride;
  }
  if (rare != 0) return stream_tile<typename Columns::Careful, kRows>(product, b, a, c);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) {
      store_vector(product.is_last ? canonical(sum[i][j]) : sum[i][j],
                   c + i * product.columns + j * kWidth);
    }
  }
}

template <typename Columns, int kRows>
SPYRE_INLINE void stream_rows(const Product& product, int rows, const std::byte* b, const Word* a,
                              Word* c) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return stream_rows<Columns, kRows - 1>(product, rows, b, a, c);
  }
  stream_tile<Columns, kRows>(product, b, a, c);
}

// More rows than a tile has meet B again while it is in L1.
template <typename Columns>
static void stream(const Product& product, const std::byte* b) {
  const int tiles = (product.rows + kStreamRows - 1) / kStreamRows;
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = product.rows * tile / tiles;
    const int rows = product.rows * (tile + 1) / tiles - first;
    for (int column = 0; column < product.columns; column += kStreamColumns) {
      stream_rows<Columns, kStreamRows>(product, rows, b + column * Columns::kBytes,
                                        product.a + first * kProductStride,
                                        product.c + first * product.columns + column);
    }
  }
}
#endif

}  // namespace matmul
