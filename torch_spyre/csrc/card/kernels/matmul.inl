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
constexpr int kStreamAhead = 32;  // rows that memory is asked for ahead of their use

// SEN169 columns are widened into registers and used for all rows at once. Numbers are fast; if a
// symbol turns up, the tile is computed again from its start by the version that knows symbols.
template <int kRows, bool kHasSymbols>
static void stream_tile(const Product& product, const std::byte* b, const Word* a, Word* c) {
  Vector sum[kRows][kWide];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) {
      sum[i][j] = product.is_first ? Vector{} : load_vector(c + i * product.columns + j * kWidth);
    }
  }
  uint32_t symbols = 0;
  const std::byte* from = b;
  for (int64_t k = 0; k < product.k; ++k) {
    Vector row[kWide];
#pragma GCC unroll 2
    for (int j = 0; j < kWide / 2; ++j) {
      const std::byte* at = from + j * Widened::kElements * 2;
      const Widened widened = kHasSymbols ? widen_any(at) : widen_numbers(at, symbols);
      row[2 * j] = widened.first;
      row[2 * j + 1] = widened.second;
      __builtin_prefetch(at + kStreamAhead * product.b_stride);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vector factor = broadcast(a[i * kProductStride + k]);
#pragma GCC unroll 4
      for (int j = 0; j < kWide; ++j) sum[i][j] = multiply_add(factor, row[j], sum[i][j]);
    }
    from += product.b_stride;
  }
  if (symbols != 0) return stream_tile<kRows, true>(product, b, a, c);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) {
      store_vector(product.is_last ? canonical(sum[i][j]) : sum[i][j],
                   c + i * product.columns + j * kWidth);
    }
  }
}

template <int kRows>
SPYRE_INLINE void stream_rows(const Product& product, int rows, const std::byte* b, const Word* a,
                              Word* c) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return stream_rows<kRows - 1>(product, rows, b, a, c);
  }
  stream_tile<kRows, false>(product, b, a, c);
}

// More rows than a tile has meet B again while it is in L1.
static void stream_sen169(const Product& product, const std::byte* b) {
  const int tiles = (product.rows + kStreamRows - 1) / kStreamRows;
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = product.rows * tile / tiles;
    const int rows = product.rows * (tile + 1) / tiles - first;
    for (int column = 0; column < product.columns; column += kWide * kWidth) {
      stream_rows<kStreamRows>(product, rows, b + column * 2, product.a + first * kProductStride,
                               product.c + first * product.columns + column);
    }
  }
}
#endif

}  // namespace matmul
