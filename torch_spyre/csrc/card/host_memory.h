// How much memory the host has left, as the kernel and the cgroups around this process see it.
#pragma once

#include <cstdint>
#include <string>

namespace spyre {

// Bytes that could be touched before something is killed or swaps: the least of the host's
// available memory and the room in each enclosing memory cgroup (v2 and v1).
int64_t available_host_memory();

// What the card leaves to everything else on the host.
int64_t host_memory_reserve();

// "1.50 GiB": sizes in messages.
std::string format_bytes(int64_t bytes);

}  // namespace spyre
