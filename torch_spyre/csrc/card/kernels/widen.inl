// SEN169 to fp32 and back, a stick at a time: the conversions that every 16-bit tensor passes
// through.
//
// Widening in lanes of 16 bits takes half the work of the plain loop. The upper half of the fp32
// pattern is the sign and the exponent with seven bits of the fraction, the lower half has the
// other two at its top; zipped together they are the number. Sticks with a NaN-infinity symbol,
// which are rare, take the plain loop.

#if SPYRE_FMA_WIDTH == 16

struct Widened {
  static constexpr int kElements = 32;
  __m512 first, second;
};

// 32 elements; `symbols` is changed if one of them is the symbol.
SPYRE_INLINE Widened widen_numbers(const std::byte* from, uint32_t& symbols) {
  const __m512i first_half =
      _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                       37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i second_half = _mm512_add_epi16(first_half, _mm512_set1_epi16(16));
  const __m512i stored = _mm512_loadu_si512(from);
  const __m512i magnitude = _mm512_and_si512(stored, _mm512_set1_epi16(0x7FFF));
  symbols |= _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(Sen169::kSymbol));
  const __m512i exponent = _mm512_srli_epi16(magnitude, 2);
  const __m512i rebased =
      _mm512_mask_add_epi16(exponent, _mm512_test_epi16_mask(magnitude, magnitude), exponent,
                            _mm512_set1_epi16(Sen169::kRebias >> 16));
  constexpr int kSignAndRest = 0xEA;  // (a & b) | c
  const __m512i upper = _mm512_ternarylogic_epi32(
      stored, _mm512_set1_epi16(static_cast<short>(0x8000)), rebased, kSignAndRest);
  const __m512i lower = _mm512_slli_epi16(stored, 14);
  return {_mm512_castsi512_ps(_mm512_permutex2var_epi16(lower, first_half, upper)),
          _mm512_castsi512_ps(_mm512_permutex2var_epi16(lower, second_half, upper))};
}

// 16 numbers as the lower halves of 32-bit lanes; `rare` is changed if one of them is neither zero
// when rounded nor in the middle of the range.
SPYRE_INLINE __m512i narrow_numbers(const Word* from, uint32_t& rare) {
  const __m512i word = _mm512_loadu_si512(from);
  const __m512i magnitude = _mm512_and_si512(word, _mm512_set1_epi32(kMagnitude));
  const __m512i rebased = _mm512_sub_epi32(magnitude, _mm512_set1_epi32(Sen169::kRebias - 0x2000));
  const __mmask16 is_number =
      _mm512_cmplt_epu32_mask(_mm512_sub_epi32(rebased, _mm512_set1_epi32(Sen169::kCode)),
                              _mm512_set1_epi32((Sen169::kSymbol - 1) * Sen169::kCode));
  const __mmask16 is_zero =
      _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(Sen169::kHalfSmallest));
  rare |= static_cast<uint16_t>(~(is_number | is_zero));
  const __m512i code = _mm512_maskz_srli_epi32(static_cast<__mmask16>(~is_zero), rebased, 14);
  constexpr int kSignAndRest = 0xEA;  // (a & b) | c
  // With a mask, for GCC 12 warns of the plain one's header.
  return _mm512_ternarylogic_epi32(_mm512_maskz_srli_epi32(0xFFFF, word, 16),
                                   _mm512_set1_epi32(0x8000), code, kSignAndRest);
}

SPYRE_INLINE void narrow_numbers(const Word* from, std::byte* to, uint32_t& rare) {
  const __m512i lower_halves =
      _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                       24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i first = narrow_numbers(from, rare);
  const __m512i second = narrow_numbers(from + 16, rare);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, lower_halves, second));
}

#elif SPYRE_FMA_WIDTH == 8

struct Widened {
  static constexpr int kElements = 16;
  __m256 first, second;
};

SPYRE_INLINE Widened widen_numbers(const std::byte* from, uint32_t& symbols) {
  const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(from));
  const __m256i magnitude = _mm256_and_si256(stored, _mm256_set1_epi16(0x7FFF));
  symbols |= static_cast<uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(Sen169::kSymbol))));
  const __m256i is_zero = _mm256_cmpeq_epi16(magnitude, _mm256_setzero_si256());
  const __m256i rebased =
      _mm256_add_epi16(_mm256_srli_epi16(magnitude, 2),
                       _mm256_andnot_si256(is_zero, _mm256_set1_epi16(Sen169::kRebias >> 16)));
  const __m256i upper = _mm256_or_si256(_mm256_xor_si256(stored, magnitude), rebased);
  const __m256i lower = _mm256_slli_epi16(stored, 14);
  // Zipping stays within 128 bits: elements 0-3 and 8-11, then 4-7 and 12-15.
  const __m256i even = _mm256_unpacklo_epi16(lower, upper);
  const __m256i odd = _mm256_unpackhi_epi16(lower, upper);
  return {_mm256_castsi256_ps(_mm256_permute2x128_si256(even, odd, 0x20)),
          _mm256_castsi256_ps(_mm256_permute2x128_si256(even, odd, 0x31))};
}

SPYRE_INLINE __m256i narrow_numbers(const Word* from, __m256i& rare) {
  const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(from));
  const __m256i magnitude = _mm256_and_si256(word, _mm256_set1_epi32(kMagnitude));
  const __m256i rebased = _mm256_sub_epi32(magnitude, _mm256_set1_epi32(Sen169::kRebias - 0x2000));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(Sen169::kCode), rebased);
  const __m256i is_large =
      _mm256_cmpgt_epi32(rebased, _mm256_set1_epi32(Sen169::kSymbol * Sen169::kCode - 1));
  const __m256i is_zero = _mm256_cmpgt_epi32(_mm256_set1_epi32(Sen169::kHalfSmallest), magnitude);
  rare = _mm256_or_si256(rare, _mm256_or_si256(_mm256_andnot_si256(is_zero, is_small), is_large));
  const __m256i code = _mm256_andnot_si256(is_zero, _mm256_srli_epi32(rebased, 14));
  return _mm256_or_si256(code,
                         _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(0x8000)));
}

SPYRE_INLINE void narrow_numbers(const Word* from, std::byte* to, uint32_t& rare) {
  __m256i any = _mm256_setzero_si256();
  // Packing stays within 128 bits: quarters 0, 2, 1, 3.
  const __m256i packed =
      _mm256_packus_epi32(narrow_numbers(from, any), narrow_numbers(from + 8, any));
  rare |= static_cast<uint32_t>(_mm256_movemask_epi8(any));
  _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(to), _mm256_permute4x64_epi64(packed, 0xD8));
}

#endif

#if SPYRE_FMA_WIDTH != 0
// Any elements, symbols or not.
SPYRE_INLINE Widened widen_any(const std::byte* from) {
  Word words[Widened::kElements];
  load<Sen169>(from, words, Widened::kElements);
  Widened widened;
  __builtin_memcpy(&widened, words, sizeof(widened));
  return widened;
}
#endif

static void load_sen169(const std::byte* from, Word* to, int64_t n) {
#if SPYRE_FMA_WIDTH != 0
  constexpr int64_t kStick = kStickBytes / 2;
  for (; n >= kStick; n -= kStick) {
    uint32_t symbols = 0;
#pragma GCC unroll 4
    for (int i = 0; i < kStick; i += Widened::kElements) {
      const Widened widened = widen_numbers(from + 2 * i, symbols);
      __builtin_memcpy(to + i, &widened, sizeof(widened));
    }
    if (symbols != 0) load<Sen169>(from, to, kStick);
    from += kStickBytes;
    to += kStick;
  }
#endif
  load<Sen169>(from, to, n);
}

// Sticks with a number that rounds to the smallest one or overflows, or with a NaN, which are rare,
// take the plain loop.
static void store_sen169(const Word* from, std::byte* to, int64_t n) {
#if SPYRE_FMA_WIDTH != 0
  constexpr int64_t kStick = kStickBytes / 2;
  for (; n >= kStick; n -= kStick) {
    uint32_t rare = 0;
#pragma GCC unroll 4
    for (int i = 0; i < kStick; i += Widened::kElements) narrow_numbers(from + i, to + 2 * i, rare);
    if (rare != 0) store<Sen169>(from, to, kStick);
    from += kStick;
    to += kStickBytes;
  }
#endif
  store<Sen169>(from, to, n);
}
