// Loads, stores and DMA conversions: a codec applied to a run of elements.

// Host tensors promise no alignment, and these types are also read through others.
template <typename T>
struct Loose {
  typedef T Type __attribute__((aligned(1), may_alias));
};

template <typename Format>
static void load(const std::byte* from, Word* to, int64_t n) {
  const auto* stored = reinterpret_cast<const typename Loose<typename Format::Stored>::Type*>(from);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = Format::widen(stored[i]);
}

template <typename Format>
static void store(const Word* from, std::byte* to, int64_t n) {
  auto* stored = reinterpret_cast<typename Loose<typename Format::Stored>::Type*>(to);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) stored[i] = Format::narrow(from[i]);
}

// Lanes are those of whole sticks.
template <typename Format>
static void load_first(const std::byte* from, int64_t stride, int64_t count, Word* to,
                       int64_t lanes) {
  using Stored = typename Loose<typename Format::Stored>::Type;
  constexpr int64_t kLanes = 32;
  for (int64_t i = 0; i < count; ++i, from += stride) {
    const Word word = Format::widen(*reinterpret_cast<const Stored*>(from));
    for (const Word* const end = to + lanes; to != end; to += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) to[lane] = word;
    }
  }
}

template <typename Format>
static void round(Word* words, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (requires { Format::round(words[i]); }) {
      words[i] = Format::round(words[i]);
    } else {
      words[i] = Format::widen(Format::narrow(words[i]));
    }
  }
}

// Where no number is too large or about to become zero, an add and a mask; those are rare.
static void round_sen169(Word* words, int64_t n) {
  constexpr int64_t kRow = 256;
  for (int64_t start = 0; start < n; start += kRow) {
    const int64_t count = n - start < kRow ? n - start : kRow;
    Word* const row = words + start;
    Word smallest = ~0u, largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Word above = (row[i] & kMagnitude) - 1;  // zero wraps: it needs no care
      smallest = smaller(smallest, above);
      const Word magnitude = row[i] & kMagnitude;
      largest = magnitude > largest ? magnitude : largest;
    }
    const bool is_plain = smallest >= Sen169::kRebias + Sen169::kCode &&
                          largest < Sen169::kRebias + (Sen169::kSymbol - 1) * Sen169::kCode;
    if (!is_plain) {
      round<Sen169>(row, count);
      continue;
    }
    for (int64_t i = 0; i < count; ++i) row[i] = (row[i] + 0x2000u) & ~0x3FFFu;
  }
}

template <typename Format>
static consteval Round round_of() {
  if constexpr (__is_same(Format, Fp32) || __is_same(Format, Int32)) return nullptr;
  if constexpr (__is_same(Format, Sen169)) return &round_sen169;
  return &round<Format>;
}

// Both sides hold the same bits.
template <int kBytes>
static int64_t move_bits(const std::byte* from, std::byte* to, int64_t n) {
  __builtin_memcpy(to, from, static_cast<size_t>(n) * kBytes);
  return 0;
}

template <typename Host, typename Card>
static int64_t float_to_card(const std::byte* from, std::byte* to, int64_t n) {
  const auto* host = reinterpret_cast<const typename Loose<typename Host::Stored>::Type*>(from);
  auto* card = reinterpret_cast<typename Loose<typename Card::Stored>::Type*>(to);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) card[i] = Card::narrow_saturating(Host::widen(host[i]));
  return 0;
}

template <typename Host, typename Card>
static int64_t float_to_host(const std::byte* from, std::byte* to, int64_t n) {
  const auto* card = reinterpret_cast<const typename Loose<typename Card::Stored>::Type*>(from);
  auto* host = reinterpret_cast<typename Loose<typename Host::Stored>::Type*>(to);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) host[i] = Host::narrow(Card::widen(card[i]));
  return 0;
}

// The pair that most transfers are, in 16-bit lanes: normal numbers of fp16 differ from SEN169's by
// a shift and a bias. A piece that holds subnormals of fp16 goes the general way.
constexpr int64_t kPiece = 512;
using Half = Loose<uint16_t>::Type;

static int64_t fp16_to_sen169(const std::byte* from, std::byte* to, int64_t n) {
  for (int64_t start = 0; start < n; start += kPiece) {
    const int64_t count = n - start < kPiece ? n - start : kPiece;
    const auto* host = reinterpret_cast<const Half*>(from) + start;
    auto* card = reinterpret_cast<Half*>(to) + start;
    uint16_t subnormals = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto below = static_cast<uint16_t>((host[i] & 0x7FFF) - 1);
      subnormals |= below < 0x3FF ? 1 : 0;
    }
    if (subnormals != 0) {
      float_to_card<Fp16, Sen169>(from + start * 2, to + start * 2, count);
      continue;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t h = host[i];
      const uint16_t m = h & 0x7FFF;
      const auto moved = static_cast<uint16_t>(((m + 1) >> 1) + 0x2000);
      const uint16_t number = m == 0 ? uint16_t{0} : moved;
      const auto signed_number = static_cast<uint16_t>((h & 0x8000) | number);
      const uint16_t symbol = h == 0xFC00 ? uint16_t{0xFFFF} : uint16_t{0x7FFF};
      card[i] = m >= 0x7C00 ? symbol : signed_number;
    }
  }
  return 0;
}

static int64_t sen169_to_fp16(const std::byte* from, std::byte* to, int64_t n) {
  for (int64_t start = 0; start < n; start += kPiece) {
    const int64_t count = n - start < kPiece ? n - start : kPiece;
    const auto* card = reinterpret_cast<const Half*>(from) + start;
    auto* host = reinterpret_cast<Half*>(to) + start;
    uint16_t subnormals = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto below = static_cast<uint16_t>((card[i] & 0x7FFF) - 1);
      subnormals |= below < 0x21FF ? 1 : 0;
    }
    if (subnormals != 0) {
      float_to_host<Fp16, Sen169>(from + start * 2, to + start * 2, count);
      continue;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t s = card[i];
      const uint16_t m = s & 0x7FFF;
      const auto moved = static_cast<uint16_t>((m - 0x2000) << 1);
      const uint16_t number = m == 0 ? uint16_t{0} : moved;
      const uint16_t bounded = m >= 0x5E00 ? uint16_t{0x7C00} : number;
      host[i] = s == 0x7FFF ? uint16_t{0x7E00} : static_cast<uint16_t>((s & 0x8000) | bounded);
    }
  }
  return 0;
}

// Keeps the low 32 bits of a value that does not fit, and counts it.
static int64_t int64_to_card(const std::byte* from, std::byte* to, int64_t n) {
  const auto* host = reinterpret_cast<const Loose<int64_t>::Type*>(from);
  auto* card = reinterpret_cast<Loose<int32_t>::Type*>(to);
  int64_t misfits = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t value = host[i];
    const auto low = static_cast<int32_t>(value);
    card[i] = low;
    misfits += low != value ? 1 : 0;
  }
  return misfits;
}

static int64_t int64_to_host(const std::byte* from, std::byte* to, int64_t n) {
  const auto* card = reinterpret_cast<const Loose<int32_t>::Type*>(from);
  auto* host = reinterpret_cast<Loose<int64_t>::Type*>(to);
  for (int64_t i = 0; i < n; ++i) host[i] = card[i];
  return 0;
}

static int64_t uint8_to_card(const std::byte* from, std::byte* to, int64_t n) {
  const auto* host = reinterpret_cast<const uint8_t*>(from);
  auto* card = reinterpret_cast<Loose<uint32_t>::Type*>(to);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) card[i] = host[i];
  return 0;
}

static int64_t uint8_to_host(const std::byte* from, std::byte* to, int64_t n) {
  const auto* card = reinterpret_cast<const Loose<uint32_t>::Type*>(from);
  auto* host = reinterpret_cast<uint8_t*>(to);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) host[i] = static_cast<uint8_t>(card[i]);
  return 0;
}
