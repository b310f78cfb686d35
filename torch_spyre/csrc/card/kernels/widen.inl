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

SPYRE_INLINE __m512i magnitude_of(__m512i word) {
  return _mm512_and_si512(word, _mm512_set1_epi32(kMagnitude));
}
SPYRE_INLINE __mmask16 is_not_zero(__m512i magnitude) {
  return _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(Sen169::kHalfSmallest));
}

// The codes of 16 numbers without their signs, in 32-bit lanes.
SPYRE_INLINE __m512i narrow_magnitudes(__m512i magnitude) {
  const __m512i rebased = _mm512_sub_epi32(magnitude, _mm512_set1_epi32(Sen169::kRebias - 0x2000));
  const __m512i lifted = _mm512_maskz_max_epi32(0xFFFF, rebased, _mm512_set1_epi32(Sen169::kCode));
  return _mm512_maskz_srli_epi32(is_not_zero(magnitude), lifted, 14);
}

// 32 numbers as they are stored; `rare` is changed if one of them is too large, or is none.
SPYRE_INLINE __m512i narrow_numbers(const Widened& numbers, uint32_t& rare) {
  const __m512i lower_halves =
      _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                       24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i upper_halves = _mm512_add_epi16(lower_halves, _mm512_set1_epi16(1));
  const __m512i first = _mm512_castps_si512(numbers.first);
  const __m512i second = _mm512_castps_si512(numbers.second);
  const __m512i magnitude[] = {magnitude_of(first), magnitude_of(second)};
  const __m512i largest = _mm512_maskz_max_epu32(0xFFFF, magnitude[0], magnitude[1]);
  rare |= _mm512_cmpge_epu32_mask(largest, _mm512_set1_epi32(Sen169::kOverflow));
  const __m512i code = _mm512_permutex2var_epi16(narrow_magnitudes(magnitude[0]), lower_halves,
                                                 narrow_magnitudes(magnitude[1]));
  const __m512i sign = _mm512_permutex2var_epi16(first, upper_halves, second);
  constexpr int kSignAndRest = 0xEA;  // (a & b) | c
  return _mm512_ternarylogic_epi32(sign, _mm512_set1_epi16(static_cast<short>(0x8000)), code,
                                   kSignAndRest);
}

// What storing and loading would make of 16 numbers that are not rare.
SPYRE_INLINE __m512 round_numbers(__m512 numbers) {
  const __m512i word = _mm512_castps_si512(numbers);
  const __m512i magnitude = magnitude_of(word);
  const __m512i rounded = _mm512_maskz_max_epi32(
      is_not_zero(magnitude), _mm512_add_epi32(magnitude, _mm512_set1_epi32(0x2000)),
      _mm512_set1_epi32(Sen169::kRebias + Sen169::kCode));
  constexpr int kSelect = 0xCA;  // a ? b : c
  const __m512i with_sign = _mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(kSignBit)),
                                                      word, rounded, kSelect);
  return _mm512_castsi512_ps(_mm512_and_si512(with_sign, _mm512_set1_epi32(~0x3FFF)));
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

SPYRE_INLINE __m256i magnitude_of(__m256i word) {
  return _mm256_and_si256(word, _mm256_set1_epi32(kMagnitude));
}
SPYRE_INLINE __m256i is_zero(__m256i magnitude) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(Sen169::kHalfSmallest), magnitude);
}

SPYRE_INLINE __m256i narrow_magnitudes(__m256i magnitude) {
  const __m256i rebased = _mm256_sub_epi32(magnitude, _mm256_set1_epi32(Sen169::kRebias - 0x2000));
  const __m256i lifted = _mm256_max_epi32(rebased, _mm256_set1_epi32(Sen169::kCode));
  return _mm256_andnot_si256(is_zero(magnitude), _mm256_srli_epi32(lifted, 14));
}

SPYRE_INLINE __m256i narrow_numbers(const Widened& numbers, uint32_t& rare) {
  const __m256i first = _mm256_castps_si256(numbers.first);
  const __m256i second = _mm256_castps_si256(numbers.second);
  const __m256i magnitude[] = {magnitude_of(first), magnitude_of(second)};
  const __m256i largest = _mm256_max_epi32(magnitude[0], magnitude[1]);
  rare |= static_cast<uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, _mm256_set1_epi32(Sen169::kOverflow - 1))));
  // Packing stays within 128 bits: quarters 0, 2, 1, 3. It saturates, which keeps the signs.
  const __m256i code =
      _mm256_packus_epi32(narrow_magnitudes(magnitude[0]), narrow_magnitudes(magnitude[1]));
  const __m256i sign = _mm256_packs_epi32(first, second);
  const __m256i packed =
      _mm256_or_si256(code, _mm256_and_si256(sign, _mm256_set1_epi16(static_cast<short>(0x8000))));
  return _mm256_permute4x64_epi64(packed, 0xD8);
}

SPYRE_INLINE __m256 round_numbers(__m256 numbers) {
  const __m256i word = _mm256_castps_si256(numbers);
  const __m256i magnitude = magnitude_of(word);
  const __m256i rounded = _mm256_max_epi32(_mm256_add_epi32(magnitude, _mm256_set1_epi32(0x2000)),
                                           _mm256_set1_epi32(Sen169::kRebias + Sen169::kCode));
  const __m256i number = _mm256_andnot_si256(is_zero(magnitude), rounded);
  const __m256i with_sign = _mm256_or_si256(number, _mm256_xor_si256(word, magnitude));
  return _mm256_castsi256_ps(_mm256_and_si256(with_sign, _mm256_set1_epi32(~0x3FFF)));
}

#endif

#if SPYRE_FMA_WIDTH != 0
using Floats = decltype(Widened::first);

// Vector by vector: GCC moves a struct in pieces through the stack, and reading that as vectors has
// to wait until all pieces are there.
SPYRE_INLINE Floats floats_at(const Word* words) {
  Floats floats;
  __builtin_memcpy(&floats, words, sizeof(floats));
  return floats;
}
SPYRE_INLINE void put_floats(Floats floats, Word* words) {
  __builtin_memcpy(words, &floats, sizeof(floats));
}
SPYRE_INLINE Widened widened_at(const Word* words) {
  return {floats_at(words), floats_at(words + Widened::kElements / 2)};
}
SPYRE_INLINE void put_widened(const Widened& widened, Word* words) {
  put_floats(widened.first, words);
  put_floats(widened.second, words + Widened::kElements / 2);
}

// Any elements, symbols or not.
SPYRE_INLINE Widened widen_any(const std::byte* from) {
  Word words[Widened::kElements];
  load<Sen169>(from, words, Widened::kElements);
  return widened_at(words);
}
#endif

#if SPYRE_FMA_WIDTH != 0
template <int kCount>
SPYRE_INLINE void load_numbers(const std::byte* from, Word* to) {
  uint32_t symbols = 0;
#pragma GCC unroll 4
  for (int i = 0; i < kCount; i += Widened::kElements) {
    put_widened(widen_numbers(from + 2 * i, symbols), to + i);
  }
  if (symbols != 0) load<Sen169>(from, to, kCount);
}
#endif

static void load_sen169(const std::byte* from, Word* to, int64_t n) {
#if SPYRE_FMA_WIDTH != 0
  constexpr int kStick = kStickBytes / 2;
  for (; n >= kStick; n -= kStick) {
    load_numbers<kStick>(from, to);
    from += kStickBytes;
    to += kStick;
  }
  for (; n >= Widened::kElements; n -= Widened::kElements) {  // heads may be half a stick wide
    load_numbers<Widened::kElements>(from, to);
    from += 2 * Widened::kElements;
    to += Widened::kElements;
  }
#endif
  load<Sen169>(from, to, n);
}

// Sticks with a number that overflows, or with a NaN, which are rare, take the plain loop.
static void store_sen169(const Word* from, std::byte* to, int64_t n) {
#if SPYRE_FMA_WIDTH != 0
  constexpr int64_t kStick = kStickBytes / 2;
  for (; n >= kStick; n -= kStick) {
    uint32_t rare = 0;
#pragma GCC unroll 4
    for (int i = 0; i < kStick; i += Widened::kElements) {
      const auto stored = narrow_numbers(widened_at(from + i), rare);
      __builtin_memcpy(to + 2 * i, &stored, sizeof(stored));
    }
    if (rare != 0) store<Sen169>(from, to, kStick);
    from += kStick;
    to += kStickBytes;
  }
#endif
  store<Sen169>(from, to, n);
}
