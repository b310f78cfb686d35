#include "runtime/stream.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>

#include "runtime/cards.h"

namespace spyre {
namespace {
constexpr QueueId kPoolSize = 32;

thread_local std::array<QueueId, kMaxCards> this_thread_queues{};
std::array<std::array<std::atomic<uint32_t>, 2>, kMaxCards> handed_out{};
}  // namespace

QueueId queue_of(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == c10::kPrivateUse1, "expected a spyre stream, got one of ",
              stream.device());
  const auto id = static_cast<int64_t>(stream.id());
  TORCH_CHECK(id >= 0 && id < kQueues, "there is no spyre stream ", id, ": ids run from 0 to ",
              kQueues - 1);
  return static_cast<QueueId>(id);
}

c10::Stream stream_of(c10::DeviceIndex device, QueueId queue) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, device), queue);
}

QueueId current_queue(c10::DeviceIndex device) { return this_thread_queues[checked_index(device)]; }

void set_current_queue(c10::DeviceIndex device, QueueId queue) {
  this_thread_queues[checked_index(device)] = queue;
}

QueueId next_queue(c10::DeviceIndex device, int priority) {
  const int pool = priority == 0 ? 0 : 1;
  const uint32_t turn = handed_out[checked_index(device)][pool]++;
  return 1 + pool * kPoolSize + static_cast<QueueId>(turn % kPoolSize);
}

}  // namespace spyre
