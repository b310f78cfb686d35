// The environment variables of the runtime, read once, when the first card is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "card/driver.h"

namespace spyre {

// What happens when an operation falls back to the CPU.
enum class FallbackMode { Warn, Error, Quiet };

struct Environment {
  int cards = 1;                          // AIU_WORLD_SIZE, else LOCAL_WORLD_SIZE, else 1
  std::vector<int> visible;               // SPYRE_DEVICES: which of them are exposed, in this order
  int default_device = 0;                 // LOCAL_RANK
  int64_t card_memory = 0;                // SPYRE_CARD_MEMORY in bytes; 0: the real card's
  int card_threads = 0;                   // SPYRE_CARD_THREADS; 0: as many as the host has
  CheckMode card_check = CheckMode::Off;  // SPYRE_CARD_CHECK
  bool monitor = true;                    // SPYRE_MONITOR
  bool debug = false;                     // TORCH_SPYRE_DEBUG
  bool downcast_warning = true;           // TORCH_SPYRE_DOWNCAST_WARN
  FallbackMode fallback = FallbackMode::Warn;  // TORCH_SPYRE_FALLBACK
  bool reports_failures = false;               // TORCH_SPYRE_FFDC
};

// Throws c10::ValueError with the variable, its value and the legal range.
const Environment& environment();

// Checks it once, without keeping it: changes still count until the device is asked for.
void check_environment();

// The environment, or null if a variable is wrong (for calls that must not throw).
const Environment* environment_or_null() noexcept;

}  // namespace spyre
