#include "opcodes.h"

#include <array>

namespace spyre {
namespace {

constexpr OpcodeInfo describe(std::string_view name, std::string_view signature,
                              OpcodeGroup group) {
  return {name, signature, static_cast<int>(signature.find(':')), group};
}

constexpr std::array<OpcodeInfo, kOpcodes> kInfos = [] {
  std::array<OpcodeInfo, kOpcodes> infos{};
#define SPYRE_OPCODE(value, name, signature) \
  infos[value] = describe(#name, signature, OpcodeGroup::Pointwise);
  SPYRE_POINTWISE_OPCODES(SPYRE_OPCODE)
#undef SPYRE_OPCODE
#define SPYRE_OPCODE(value, name, signature) \
  infos[value] = describe(#name, signature, OpcodeGroup::Reduction);
  SPYRE_REDUCTION_OPCODES(SPYRE_OPCODE)
#undef SPYRE_OPCODE
#define SPYRE_OPCODE(value, name, signature) \
  infos[value] = describe(#name, signature, OpcodeGroup::Other);
  SPYRE_OTHER_OPCODES(SPYRE_OPCODE)
#undef SPYRE_OPCODE
  return infos;
}();

constexpr OpcodeInfo kNoOpcode{};

}  // namespace

const OpcodeInfo& opcode_info(uint16_t value) {
  return value < kOpcodes ? kInfos[value] : kNoOpcode;
}

}  // namespace spyre
