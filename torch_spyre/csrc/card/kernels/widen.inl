// SEN169 to fp32, a stick at a time: the conversion that every 16-bit matrix passes through.
//
// In lanes of 16 bits it takes half the work of the plain loop. The upper half of the fp32 pattern
// is the sign and the exponent with seven bits of the fraction, the lower half has the other two
// at its top; zipped together they are the number. Sticks with a NaN-infinity symbol, which are
// rare, take the plain loop.

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
