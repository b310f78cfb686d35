// What c10 asks of a device: the current device and stream, events, synchronisation.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <memory>

#include "runtime/activity.h"
#include "runtime/cards.h"
#include "runtime/dtypes.h"
#include "runtime/storage.h"
#include "runtime/stream.h"

namespace spyre {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

// An event is the ticket of the work before it, and with that its time on the card's clock.
struct CardEvent {
  DeviceIndex device = -1;
  Ticket ticket;
  bool has_timing = false;
};

struct SpyreGuardImpl final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(c10::kPrivateUse1, current_device()); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.is_privateuseone(), "expected a spyre device, got ", device);
    set_current_device(device.index());
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    set_current_device_unchecked(device.index());
  }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability capability;
    auto& bits = capability.capability_data.capability_bits;
    bits = 0;
    using T = c10::ScalarType;
    for (int i = 0; i < static_cast<int>(T::NumOptions); ++i) {
      if (i < 64 && has_device_format(static_cast<T>(i))) {
        bits |= uint64_t{1} << i;
      }
    }
    return capability;
  }

  Stream getStream(Device device) const override {
    const DeviceIndex index = checked_index(device.index());
    return stream_of(index, current_queue(index));
  }
  Stream getDefaultStream(Device device) const override {
    return stream_of(checked_index(device.index()), 0);
  }
  Stream getStreamFromGlobalPool(Device device, bool is_high_priority) const override {
    return getNewStream(device, is_high_priority ? -1 : 0);
  }
  Stream getNewStream(Device device, int priority) const override {
    const DeviceIndex index = checked_index(device.index());
    return stream_of(index, next_queue(index, priority));
  }
  Stream exchangeStream(Stream stream) const override {
    const DeviceIndex index = checked_index(stream.device_index());
    const Stream before = stream_of(index, current_queue(index));
    set_current_queue(index, queue_of(stream));
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(queue_of(stream)));
  }

  bool queryStream(const Stream& stream) const override {
    return driver(stream.device_index()).is_idle(queue_of(stream));
  }
  void synchronizeStream(const Stream& stream) const override {
    wait_for_queue(stream.device_index(), queue_of(stream));
  }
  void synchronizeDevice(const DeviceIndex device) const override { wait_for_device(device); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    if (data.get() != nullptr && data.device().is_privateuseone()) {
      record_use(data, stream);
    }
  }

  void record(void** event, const Stream& stream, const DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(),
                "the event belongs to spyre:", static_cast<int>(device),
                " and can't be recorded on a stream of ", stream.device());
    if (*event == nullptr) {
      *event = new CardEvent();  // owned by c10's Event, which calls destroyEvent
    }
    auto* recorded = static_cast<CardEvent*>(*event);
    recorded->device = stream.device_index();
    recorded->has_timing = flag == c10::EventFlag::BACKEND_DEFAULT;
    recorded->ticket = driver(stream.device_index()).record(queue_of(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) {
      return;
    }
    const auto* recorded = static_cast<CardEvent*>(event);
    if (recorded->device == stream.device_index()) {
      driver(recorded->device).block(queue_of(stream), recorded->ticket);
      if (is_recording()) record_block(recorded->device, queue_of(stream), recorded->ticket);
    } else {  // another card's clock and queues: the host makes sure
      wait_for(recorded->device, recorded->ticket);
    }
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) {
      return true;
    }
    const auto* recorded = static_cast<CardEvent*>(event);
    return driver(recorded->device).is_done(recorded->ticket);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      const auto* recorded = static_cast<CardEvent*>(event);
      wait_for(recorded->device, recorded->ticket);
    }
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<CardEvent*>(event);
  }
  double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
    const auto* from = static_cast<CardEvent*>(begin);
    const auto* to = static_cast<CardEvent*>(end);
    TORCH_CHECK(from != nullptr && to != nullptr,
                "both events must be recorded before their elapsed time can be asked for");
    TORCH_CHECK(from->has_timing && to->has_timing,
                "both events must be created with enable_timing=True to give an elapsed time");
    TORCH_CHECK(from->device == to->device,
                "the events were recorded on spyre:", static_cast<int>(from->device),
                " and spyre:", static_cast<int>(to->device), ", whose clocks are independent");
    return static_cast<double>(to->ticket.end - from->ticket.end) / 1e6;  // milliseconds
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SpyreGuardImpl)

}  // namespace
}  // namespace spyre
