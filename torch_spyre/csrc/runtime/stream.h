// PyTorch's streams are the card's queues: stream id == queue id.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "card/driver.h"

namespace spyre {

inline constexpr QueueId kFirstHighPriority = 33;

QueueId queue_of(const c10::Stream& stream);  // throws for a stream that isn't ours
c10::Stream stream_of(c10::DeviceIndex device, QueueId queue);

// The current stream of this thread, per device.
QueueId current_queue(c10::DeviceIndex device);
void set_current_queue(c10::DeviceIndex device, QueueId queue);

// The next stream of a pool, round robin: 1..32 for priority 0, 33..64 for any other.
QueueId next_queue(c10::DeviceIndex device, int priority);

}  // namespace spyre
