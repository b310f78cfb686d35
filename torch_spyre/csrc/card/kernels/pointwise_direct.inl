// Simple operations on sticks of SEN169: widened, computed and rounded without leaving the
// registers. On the host such an operation is as fast as its memory; words in between would be a
// multiple of what is read and written.
//
// Sticks with a NaN-infinity symbol, or with a result that is one, are rare and take the plain
// loops.

#if SPYRE_FMA_WIDTH != 0
namespace direct {

constexpr int kLanes = kStickBytes / 2;
constexpr int kPart = Widened::kElements;

// How an input is read: both kinds of a first element alike, once it is widened.
enum class Way : uint8_t { Words, Stick, First };

SPYRE_INLINE Way way_of(const DirectInput& input) {
  if (input.kind == DirectInput::Kind::Words) return Way::Words;
  return input.kind == DirectInput::Kind::Stick ? Way::Stick : Way::First;
}

SPYRE_INLINE Word first_word(const std::byte* at, bool is_word) {
  if (is_word) return *reinterpret_cast<const Loose<Word>::Type*>(at);
  return Sen169::widen(*reinterpret_cast<const Loose<uint16_t>::Type*>(at));
}

#if SPYRE_FMA_WIDTH == 16
using Stored = __m512i;
#else
using Stored = __m256i;
#endif

SPYRE_INLINE void put_stored(Stored stored, std::byte* to, bool is_streamed) {
  if (!is_streamed) {
    __builtin_memcpy(to, &stored, sizeof(stored));
    return;
  }
#if SPYRE_FMA_WIDTH == 16
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), stored);
#else
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), stored);
#endif
}
static void fence() { _mm_sfence(); }
SPYRE_INLINE Floats repeated(Word word) {
  typedef Word Words __attribute__((vector_size(sizeof(Floats))));
  return bits_as<Floats>(Words{} + word);
}

// Reads an input, stick by stick.
template <Way way>
struct Reader {
  const std::byte* at;
  const int64_t stride;
  const bool is_word;  // First: not SEN169
  Floats first;

  __attribute__((always_inline)) Reader(const DirectInput& input, int64_t index)
      : at(input.from + index * input.stride),
        stride(input.stride),
        is_word(input.kind == DirectInput::Kind::FirstWord) {}
  __attribute__((always_inline)) void begin() {
    if constexpr (way == Way::First) first = repeated(first_word(at, is_word));
  }
  __attribute__((always_inline)) Widened read(int lane, uint32_t& symbols) const {
    if constexpr (way == Way::Stick) return widen_numbers(at + 2 * lane, symbols);
    if constexpr (way == Way::First) return {first, first};
    const Word* const words = reinterpret_cast<const Word*>(at) + lane;
    return widened_at(words);
  }
};

// Elements from `lane` on, whatever they are.
static void read_any(const DirectInput& input, int64_t index, int lane, Word* words, int count) {
  const std::byte* const at = input.from + index * input.stride;
  if (input.kind == DirectInput::Kind::Stick) {
    load<Sen169>(at + 2 * lane, words, count);
  } else if (input.kind == DirectInput::Kind::Words) {
    __builtin_memcpy(words, at + 4 * lane, static_cast<size_t>(count) * sizeof(Word));
  } else {
    const Word word = first_word(at, input.kind == DirectInput::Kind::FirstWord);
    for (int i = 0; i < count; ++i) words[i] = word;
  }
}

// Elements of a stick from `lane` on, the plain way.
static void run_plain(const DirectSticks& sticks, int64_t index, int lane, Pointwise op) {
  Word left[kLanes], right[kLanes];
  const int count = kLanes - lane;
  read_any(sticks.in[0], index, lane, left, count);
  read_any(sticks.in[1], index, lane, right, count);
  const Word* const in[] = {left, right};
  op(in, left, count);
  if (sticks.stored != nullptr) {
    store<Sen169>(left, sticks.stored + index * sticks.stride + 2 * lane, count);
  }
  if (sticks.words != nullptr) {
    round<Sen169>(left, count);
    __builtin_memcpy(sticks.words + index * kLanes + lane, left,
                     static_cast<size_t>(count) * sizeof(Word));
  }
}

// From the stick `index` on, up to the first part with something rare; returns its first element,
// counted from stick 0. Without calls, for those would clear the registers.
template <typename Op, Way left_way, Way right_way, bool has_words, bool has_stored>
static int64_t run_numbers(const DirectSticks& sticks, int64_t index) {
  const int64_t count = sticks.count;
  const int64_t stride = sticks.stride;
  const bool is_streamed = sticks.is_streamed;
  Reader<left_way> left(sticks.in[0], index);
  Reader<right_way> right(sticks.in[1], index);
  Word* words = has_words ? sticks.words + index * kLanes : nullptr;
  std::byte* stored = has_stored ? sticks.stored + index * stride : nullptr;
  for (; index < count; ++index) {
    left.begin();
    right.begin();
#pragma GCC unroll 4
    for (int lane = 0; lane < kLanes; lane += kPart) {
      uint32_t rare = 0;
      const Widened x = left.read(lane, rare);
      const Widened y = right.read(lane, rare);
      const Widened result{Op::apply(x.first, y.first), Op::apply(x.second, y.second)};
      const Stored narrowed = narrow_numbers(result, rare);
      if (rare != 0) return index * kLanes + lane;
      if constexpr (has_stored) put_stored(narrowed, stored + 2 * lane, is_streamed);
      if constexpr (has_words) {
        put_floats(round_numbers(result.first), words + lane);
        put_floats(round_numbers(result.second), words + lane + kPart / 2);
      }
    }
    left.at += left.stride;
    right.at += right.stride;
    if constexpr (has_words) words += kLanes;
    if constexpr (has_stored) stored += stride;
  }
  return count * kLanes;
}

using RunNumbers = int64_t (*)(const DirectSticks&, int64_t);

template <typename Op, Way left, Way right>
SPYRE_INLINE RunNumbers run_for_results(const DirectSticks& sticks) {
  if (sticks.words == nullptr) return &run_numbers<Op, left, right, false, true>;
  if (sticks.stored == nullptr) return &run_numbers<Op, left, right, true, false>;
  return &run_numbers<Op, left, right, true, true>;
}

template <typename Op, Way left>
SPYRE_INLINE RunNumbers run_for_right(const DirectSticks& sticks) {
  switch (way_of(sticks.in[1])) {
    case Way::Words:
      return run_for_results<Op, left, Way::Words>(sticks);
    case Way::Stick:
      return run_for_results<Op, left, Way::Stick>(sticks);
    case Way::First:
      break;
  }
  return run_for_results<Op, left, Way::First>(sticks);
}

template <typename Op>
SPYRE_INLINE RunNumbers run_for(const DirectSticks& sticks) {
  switch (way_of(sticks.in[0])) {
    case Way::Words:
      return run_for_right<Op, Way::Words>(sticks);
    case Way::Stick:
      return run_for_right<Op, Way::Stick>(sticks);
    case Way::First:
      break;
  }
  return run_for_right<Op, Way::First>(sticks);
}

template <typename Op>
static void run(const DirectSticks& given) {
  DirectSticks sticks = given;
  // A stick that repeats is widened once.
  alignas(64) Word repeats[2][kLanes];
  for (int i = 0; i < 2; ++i) {
    DirectInput& input = sticks.in[i];
    if (input.stride != 0) continue;
    read_any(input, 0, 0, repeats[i], kLanes);
    input = {DirectInput::Kind::Words, reinterpret_cast<const std::byte*>(repeats[i]), 0};
  }
  // Such stores must be aligned.
  const auto place =
      reinterpret_cast<uintptr_t>(sticks.stored) | static_cast<uint64_t>(sticks.stride);
  sticks.is_streamed = sticks.is_streamed && place % sizeof(Stored) == 0;
  const RunNumbers run_some = run_for<Op>(sticks);
  for (int64_t index = 0; index < sticks.count; ++index) {
    const int64_t done = run_some(sticks, index);
    index = done / kLanes;
    if (index < sticks.count) run_plain(sticks, index, static_cast<int>(done % kLanes), Op::kPlain);
  }
}

#define SPYRE_DIRECT(NAME, OPCODE, ...)               \
  struct NAME {                                       \
    static constexpr Pointwise kPlain = &op_##OPCODE; \
    template <typename T>                             \
    SPYRE_INLINE T apply(T x, T y) {                  \
      return __VA_ARGS__;                             \
    }                                                 \
  };
SPYRE_DIRECT(Add, add, x + y)
SPYRE_DIRECT(Sub, sub, x - y)
SPYRE_DIRECT(Mul, mul, x* y)
SPYRE_DIRECT(Div, div, x / y)
SPYRE_DIRECT(Maximum, maximum, (x > y) | (x != x) ? x : y)
SPYRE_DIRECT(Minimum, minimum, (x < y) | (x != x) ? x : y)
#undef SPYRE_DIRECT

static consteval void put_all(Table& table) {
  const auto put = [&](Opcode opcode, Direct kernel) {
    table.direct[static_cast<size_t>(opcode)] = kernel;
  };
  put(Opcode::add, &run<Add>);
  put(Opcode::sub, &run<Sub>);
  put(Opcode::mul, &run<Mul>);
  put(Opcode::div, &run<Div>);
  put(Opcode::maximum, &run<Maximum>);
  put(Opcode::minimum, &run<Minimum>);
}

}  // namespace direct
#endif
