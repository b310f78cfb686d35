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
#define SPYRE_LIST(group, list)                        \
  {                                                    \
    constexpr OpcodeGroup kGroup = OpcodeGroup::group; \
    list(SPYRE_OPCODE)                                 \
  }
#define SPYRE_OPCODE(value, name, signature) infos[value] = describe(#name, signature, kGroup);
  SPYRE_OPCODE_LISTS(SPYRE_LIST)
#undef SPYRE_OPCODE
#undef SPYRE_LIST
  return infos;
}();

constexpr OpcodeInfo kNoOpcode{};

}  // namespace

const OpcodeInfo& opcode_info(uint16_t value) {
  return value < kOpcodes ? kInfos[value] : kNoOpcode;
}

}  // namespace spyre
