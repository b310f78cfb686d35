// The cards of this process: which devices exist, and their drivers once they are open.
//
// A card opens on first use, under a lock; everything before that (device counts, tensors on
// other devices, `import torch`) leaves it closed.
#pragma once

#include <c10/core/Device.h>

#include "card/driver.h"

namespace spyre {

inline constexpr int kMaxCards = 8;

c10::DeviceIndex device_count() noexcept;

// The driver of a device, opened if necessary. Throws c10::Error for an index that doesn't exist
// and in a process that was forked after a card had been opened.
Driver& driver(c10::DeviceIndex index);

bool is_open(c10::DeviceIndex index) noexcept;
bool any_open() noexcept;

// True in a child forked after a card was opened: its cards' threads and locks are gone.
bool is_bad_fork() noexcept;

// Waits that let go of Python's lock and throw what went wrong as PyTorch's exceptions.
void wait_for(c10::DeviceIndex index, Ticket ticket);
void wait_for_queue(c10::DeviceIndex index, QueueId queue);
void wait_for_device(c10::DeviceIndex index);  // returns at once if its card is closed

// The current device of this thread.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);  // throws for an index that doesn't exist
void set_current_device_unchecked(c10::DeviceIndex index) noexcept;

// `index`, or the current device for -1. Throws for an index that doesn't exist.
c10::DeviceIndex checked_index(c10::DeviceIndex index);

}  // namespace spyre
