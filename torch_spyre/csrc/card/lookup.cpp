#include "lookup.h"

#include <algorithm>
#include <array>

namespace spyre {
namespace {

using kernels::DirectInput;
using kernels::Word;

constexpr int64_t kCodes = 1 << 16;
constexpr int64_t kLanes = kStickBytes / 2;
constexpr auto kSen169 = static_cast<size_t>(DataFormat::SEN169_FP16);
typedef uint16_t Code __attribute__((may_alias));

class Results {
 public:
  explicit Results(Opcode opcode) {
    const kernels::Table& table = kernels::table();
    std::array<Word, kLanes> words;
    for (int64_t first = 0; first < kCodes; first += kLanes) {
      uint16_t* const codes = code_.data() + first;
      for (int64_t i = 0; i < kLanes; ++i) codes[i] = static_cast<uint16_t>(first + i);
      table.load[kSen169](reinterpret_cast<const std::byte*>(codes), words.data(), kLanes);
      const Word* const in[] = {words.data()};
      table.pointwise[static_cast<size_t>(opcode)](in, words.data(), kLanes);
      table.store[kSen169](words.data(), reinterpret_cast<std::byte*>(codes), kLanes);
    }
  }
  const uint16_t* data() const { return code_.data(); }

 private:
  std::array<uint16_t, kCodes> code_;
};

template <Opcode opcode>
const uint16_t* made_results() {
  static const Results results(opcode);
  return results.data();
}

// A stick of codes, wherever the operand has them; `space` is for those that it has as words.
const Code* codes_of(const DirectInput& input, int64_t index, Code* space) {
  const std::byte* const at = input.from + index * input.stride;
  switch (input.kind) {
    case DirectInput::Kind::Stick:
      return reinterpret_cast<const Code*>(at);
    case DirectInput::Kind::FirstHalf:
      std::fill_n(space, kLanes, *reinterpret_cast<const Code*>(at));
      return space;
    case DirectInput::Kind::Words:
      kernels::table().store[kSen169](reinterpret_cast<const Word*>(at),
                                      reinterpret_cast<std::byte*>(space), kLanes);
      return space;
    case DirectInput::Kind::FirstWord:
      break;
  }
  __builtin_unreachable();  // fp32
}

}  // namespace

const uint16_t* results_of(Opcode opcode) {
  switch (opcode) {
#define SPYRE_TABLE(name) \
  case Opcode::name:      \
    return made_results<Opcode::name>();
    SPYRE_TABLE(exp)
    SPYRE_TABLE(exp2)
    SPYRE_TABLE(expm1)
    SPYRE_TABLE(log)
    SPYRE_TABLE(log2)
    SPYRE_TABLE(log10)
    SPYRE_TABLE(log1p)
    SPYRE_TABLE(rsqrt)
    SPYRE_TABLE(tanh)
    SPYRE_TABLE(sigmoid)
    SPYRE_TABLE(gelu)
    SPYRE_TABLE(gelu_tanh)
    SPYRE_TABLE(silu)
    SPYRE_TABLE(erf)
    SPYRE_TABLE(sin)
    SPYRE_TABLE(cos)
#undef SPYRE_TABLE
    default:
      return nullptr;
  }
}

void look_up(const uint16_t* results, const kernels::DirectSticks& sticks) {
  Code space[kLanes], own[kLanes];
  for (int64_t index = 0; index < sticks.count; ++index) {
    const Code* const codes = codes_of(sticks.in[0], index, space);
    Code* const to = sticks.stored == nullptr
                         ? own
                         : reinterpret_cast<Code*>(sticks.stored + index * sticks.stride);
    for (int64_t i = 0; i < kLanes; ++i) to[i] = results[codes[i]];
    if (sticks.words != nullptr) {
      kernels::table().load[kSen169](reinterpret_cast<const std::byte*>(to),
                                     sticks.words + index * kLanes, kLanes);
    }
  }
}

}  // namespace spyre
