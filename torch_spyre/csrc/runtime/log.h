// The C++ debug log, on stderr, switched on by TORCH_SPYRE_DEBUG=1.
#pragma once

#include <c10/core/Device.h>

#include <iostream>
#include <sstream>

#include "runtime/env.h"

namespace spyre {

// One line per event, written in one piece so that threads don't mix.
template <typename... Parts>
void debug_log(const char* event, c10::DeviceIndex device, const Parts&... parts) {
  const Environment* env = environment_or_null();
  if (env == nullptr || !env->debug) {
    return;
  }
  std::ostringstream line;
  line << "[torch_spyre] " << event << " spyre:" << static_cast<int>(device) << ' ';
  (line << ... << parts);
  line << '\n';
  std::cerr << line.str() << std::flush;
}

}  // namespace spyre
