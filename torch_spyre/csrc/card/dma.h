// Transfers between host and card: checking a descriptor, and running it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver.h"
#include "threads.h"

namespace spyre {

// Throws std::invalid_argument unless every element lies inside what the descriptor declares and
// the formats convert into each other.
void check_descriptor(const DmaDescriptor& descriptor);

// Bytes that cross the host link: the host's side, without padding.
int64_t link_bytes(const DmaDescriptor& descriptor);

// The bytes of the card's memory that a descriptor reaches, from its address.
struct DeviceRange {
  int64_t first = 0;
  int64_t end = 0;
};
DeviceRange device_range(const DmaDescriptor& descriptor);

// Run a checked descriptor. `run_to_card` returns how many values did not fit their format.
int64_t run_to_card(const DmaDescriptor& descriptor, const std::byte* from, std::byte* to,
                    ThreadPool& pool);
void run_to_host(const DmaDescriptor& descriptor, const std::byte* from, std::byte* to,
                 ThreadPool& pool);

}  // namespace spyre
