// Random numbers: a counter-based generator (Philox 4x32-10) per device.
#pragma once

#include <ATen/core/Generator.h>

namespace spyre {

// What a random kernel needs: a key and the first counter that nobody has used yet.
struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

// Takes `count` counters from the generator (the device's own if none is given). Throws for a
// generator of another device type.
PhiloxState take_random(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                        uint64_t count);

}  // namespace spyre
