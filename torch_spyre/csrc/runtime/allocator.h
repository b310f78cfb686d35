// PyTorch's view of card memory: c10's allocator for the device type, with statistics.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <functional>

namespace spyre {

c10::DeviceAllocator& device_allocator();

// Called once when memory runs short, before an allocation is tried again (Python's garbage
// collection). Set by the module.
void set_collect_garbage(std::function<void()> collect);

}  // namespace spyre
