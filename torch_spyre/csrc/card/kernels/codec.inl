// The number formats, one element at a time: `widen` to the 32-bit word the units compute with,
// `narrow` as the arithmetic units round, `narrow_saturating` as DMA and constants do (a finite
// value stays finite). Branch-free, so that loops over them vectorise.
//
// Included into a namespace of its own by formats.cpp and by every version of the kernels.

#define SPYRE_INLINE static inline __attribute__((always_inline))

template <typename To, typename From>
SPYRE_INLINE To bits_as(From value) {
  return __builtin_bit_cast(To, value);  // std::bit_cast would be emitted once for all versions
}

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kMagnitude = 0x7FFFFFFFu;
constexpr uint32_t kInfinity = 0x7F800000u;
// The only NaN that widening and arithmetic produce: which operand's NaN survives an x86
// instruction depends on an order that the compiler is free to choose.
constexpr uint32_t kNan = 0x7FC00000u;

SPYRE_INLINE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// DLFloat16: 1-6-9, bias 31, no subnormals, one merged NaN-infinity symbol, ties away from zero.
struct Sen169 {
  using Stored = uint16_t;
  static constexpr uint32_t kSymbol = 0x7FFF;
  static constexpr uint32_t kCode = 1u << 14;     // one unit in the last place, as fp32 bits
  static constexpr uint32_t kRebias = 96u << 23;  // fp32's bias less SEN169's
  static constexpr uint32_t kHalfSmallest = (95u << 23) | (1u << 14);  // half of 0x0001, as fp32
  // The least that rounds to the symbol, as fp32.
  static constexpr uint32_t kOverflow = kRebias + kSymbol * kCode - 0x2000;

  // Sign, exponent and fraction at their places in fp32, with this format's bias.
  SPYRE_INLINE uint32_t spread(Stored stored) {
    const auto extended = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(stored)));
    return (extended << 14) & ~(3u << 29);  // the sign was extended into these two bits
  }
  SPYRE_INLINE uint32_t widen(Stored stored) {
    const uint32_t spread_bits = spread(stored);
    const uint32_t magnitude = spread_bits & kMagnitude;
    const uint32_t number = magnitude == 0 ? spread_bits : spread_bits + kRebias;
    const uint32_t symbol = (spread_bits & kSignBit) != 0 ? kSignBit | kInfinity : kNan;
    return magnitude == kSymbol << 14 ? symbol : number;
  }
  SPYRE_INLINE Stored narrow_to(uint32_t word, uint32_t largest) {
    const uint32_t magnitude = word & kMagnitude;
    // Adding half a unit and cutting is rounding with ties away from zero.
    const int32_t rounded =
        static_cast<int32_t>((magnitude + 0x2000u) >> 14) - static_cast<int32_t>(kRebias >> 14);
    const uint32_t bounded = rounded < 1 ? 1u : smaller(static_cast<uint32_t>(rounded), largest);
    const uint32_t m = magnitude < kHalfSmallest ? 0 : bounded;
    return static_cast<Stored>(magnitude > kInfinity ? kSymbol : ((word >> 16) & 0x8000u) | m);
  }
  SPYRE_INLINE Stored narrow(uint32_t word) { return narrow_to(word, kSymbol); }
  SPYRE_INLINE Stored narrow_saturating(uint32_t word) {
    return narrow_to(word, (word & kMagnitude) < kInfinity ? kSymbol - 1 : kSymbol);
  }
  // widen(narrow(word)), without the way through 16 bits.
  SPYRE_INLINE uint32_t round(uint32_t word) {
    constexpr uint32_t kSmallest = kRebias + kCode;
    const uint32_t magnitude = word & kMagnitude;
    const uint32_t rounded = (magnitude + 0x2000u) & ~0x3FFFu;
    const uint32_t lifted = rounded > kSmallest ? rounded : kSmallest;
    const uint32_t number = (word & kSignBit) | (magnitude < kHalfSmallest ? 0 : lifted);
    const uint32_t symbol = word - kSignBit <= kInfinity ? kSignBit | kInfinity : kNan;
    return magnitude >= kOverflow ? symbol : number;
  }
};

// A binary format with subnormals, ties to even. `kHasInfinity` false is the "fn" variant of
// fp8: the top exponent holds numbers, all ones is NaN, and overflow gives NaN.
template <typename StoredType, int kExponentBits, int kFractionBits, bool kHasInfinity,
          uint32_t kNanCode>
struct SmallFloat {
  using Stored = StoredType;
  static constexpr int kDropped = 23 - kFractionBits;
  static constexpr int kSignAt = kExponentBits + kFractionBits;
  static constexpr uint32_t kRebias = 127 - ((1 << (kExponentBits - 1)) - 1);
  static constexpr uint32_t kTop = ((1u << kExponentBits) - 1) << kFractionBits;
  static constexpr uint32_t kOverflow = kHasInfinity ? kTop : kNanCode;
  // The smallest normal number as fp32 bits, and a number whose unit in the last place is the
  // smallest subnormal: adding it rounds to that grid.
  static constexpr uint32_t kSmallestNormal = (kRebias + 1) << 23;
  static constexpr uint32_t kGrid = (kRebias + 1 + kDropped) << 23;

  SPYRE_INLINE uint32_t widen(Stored stored) {
    const uint32_t m = stored & ((1u << kSignAt) - 1);
    const uint32_t sign = ((static_cast<uint32_t>(stored) >> kSignAt) & 1u) << 31;
    const uint32_t shifted = m << kDropped;
    const uint32_t normal = shifted + (kRebias << 23);
    const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(shifted + kSmallestNormal) -
                                                 bits_as<float>(kSmallestNormal));
    uint32_t magnitude = m < (1u << kFractionBits) ? subnormal : normal;
    if (kHasInfinity) {
      magnitude = m == kTop ? kInfinity : magnitude;
      magnitude = m > kTop ? kNan : magnitude;
    } else {
      magnitude = m == kNanCode ? kNan : magnitude;
    }
    return sign | magnitude;
  }
  SPYRE_INLINE Stored narrow_to(uint32_t word, uint32_t largest) {
    const uint32_t magnitude = word & kMagnitude;
    const uint32_t to_even = (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u);
    const uint32_t normal = ((magnitude + to_even) >> kDropped) - (kRebias << kFractionBits);
    const uint32_t subnormal =
        bits_as<uint32_t>(bits_as<float>(magnitude) + bits_as<float>(kGrid)) - kGrid;
    const uint32_t number = magnitude < kSmallestNormal ? subnormal : smaller(normal, largest);
    const uint32_t m = magnitude > kInfinity ? kNanCode : number;
    return static_cast<Stored>(((word >> 31) << kSignAt) | m);
  }
  SPYRE_INLINE Stored narrow(uint32_t word) { return narrow_to(word, kOverflow); }
  SPYRE_INLINE Stored narrow_saturating(uint32_t word) {
    return narrow_to(word, (word & kMagnitude) < kInfinity ? kOverflow - 1 : kOverflow);
  }
};

using Fp16 = SmallFloat<uint16_t, 5, 10, true, 0x7E00>;
using Sen143 = SmallFloat<uint8_t, 4, 3, false, 0x7F>;  // the bits of torch.float8_e4m3fn
using Sen152 = SmallFloat<uint8_t, 5, 2, true, 0x7F>;   // the bits of torch.float8_e5m2
// Ours, not published beyond its name: bias, subnormals and symbols as IEEE would have them, in
// the low 9 bits of a 16-bit container.
using Sen153 = SmallFloat<uint16_t, 5, 3, true, 0xFC>;

// fp32 with fewer fraction bits, in the low bits of a container; ties to even.
template <typename StoredType, int kDropped>
struct ShortenedFp32 {
  using Stored = StoredType;
  static constexpr uint32_t kTop = kInfinity >> kDropped;

  SPYRE_INLINE uint32_t widen(Stored stored) {
    const uint32_t word = static_cast<uint32_t>(stored) << kDropped;
    return (word & kMagnitude) > kInfinity ? kNan : word;
  }
  SPYRE_INLINE Stored narrow_to(uint32_t word, uint32_t largest) {
    const uint32_t magnitude = word & kMagnitude;
    const uint32_t to_even = (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u);
    const uint32_t m = smaller((magnitude + to_even) >> kDropped, largest);
    return static_cast<Stored>(magnitude > kInfinity ? kNan >> kDropped
                                                     : ((word & kSignBit) >> kDropped) | m);
  }
  SPYRE_INLINE Stored narrow(uint32_t word) { return narrow_to(word, kTop); }
  SPYRE_INLINE Stored narrow_saturating(uint32_t word) {
    return narrow_to(word, (word & kMagnitude) < kInfinity ? kTop - 1 : kTop);
  }
};

using Bf16 = ShortenedFp32<uint16_t, 16>;
// Ours: 1-8-15 is published, its rounding and place in a 32-bit container are not.
using Sen18f = ShortenedFp32<uint32_t, 8>;

struct Fp32 {
  using Stored = uint32_t;
  SPYRE_INLINE uint32_t widen(Stored stored) { return stored; }
  SPYRE_INLINE Stored narrow(uint32_t word) { return word; }
  SPYRE_INLINE Stored narrow_saturating(uint32_t word) { return word; }
};

// Integers wrap when they are narrowed.
template <typename StoredType>
struct Integer {
  using Stored = StoredType;
  SPYRE_INLINE uint32_t widen(Stored stored) {
    return static_cast<uint32_t>(static_cast<int32_t>(stored));
  }
  SPYRE_INLINE Stored narrow(uint32_t word) { return static_cast<Stored>(word); }
};

using Int8 = Integer<int8_t>;
using Int16 = Integer<int16_t>;
using Int32 = Integer<uint32_t>;  // SENUINT32 too: arithmetic modulo 2^32 needs no sign

// A byte as a factor of a matmul: the number in fp32.
struct Int8Factor {
  using Stored = int8_t;
  SPYRE_INLINE uint32_t widen(Stored stored) {
    return bits_as<uint32_t>(static_cast<float>(stored));
  }
};

// Ours: sign-extended in a 32-bit container.
struct Int24 {
  using Stored = uint32_t;
  SPYRE_INLINE uint32_t widen(Stored stored) {
    return static_cast<uint32_t>(static_cast<int32_t>(stored << 8) >> 8);
  }
  SPYRE_INLINE Stored narrow(uint32_t word) { return widen(word); }
};

// One byte; computes as the floats 1.0 and 0.0, as all truth values of the card do.
struct Bool {
  using Stored = uint8_t;
  SPYRE_INLINE uint32_t widen(Stored stored) { return stored != 0 ? 0x3F800000u : 0u; }
  SPYRE_INLINE Stored narrow(uint32_t word) { return (word & kMagnitude) != 0 ? 1 : 0; }
  SPYRE_INLINE Stored narrow_saturating(uint32_t word) { return narrow(word); }
};
