// torch.autograd.profiler without Kineto's part for the card: it times ranges by events around
// them.
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <functional>
#include <memory>

#include "runtime/cards.h"

namespace spyre {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

constexpr float kNotKnown = -1;  // PyTorch then adds up the parts of the range

struct SpyreStubs final : public torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    const c10::Device current = guard.getDevice();
    auto recorded =
        std::make_shared<c10::Event>(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
    recorded->record(guard.getStream(current));
    *event = std::move(recorded);
    if (device != nullptr) *device = current.index();
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
  }

  // In microseconds. PyTorch cuts what is behind the point: so the parts of a range never add up
  // to more than the range.
  float elapsed(const ProfilerVoidEventStub* begin,
                const ProfilerVoidEventStub* end) const override {
    const auto& from = *static_cast<const c10::Event*>(begin->get());
    const auto& to = *static_cast<const c10::Event*>(end->get());
    if (from.device() != to.device()) return kNotKnown;  // their clocks are independent
    to.synchronize();
    return static_cast<float>(from.elapsedTime(to) * 1e3);
  }

  // There is no other tool that marks and ranges could be passed on to.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}

  bool enabled() const override { return device_count() > 0; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      const c10::DeviceGuard guard(c10::Device(c10::kPrivateUse1, index));
      op(index);
    }
  }
  void synchronize() const override { wait_for_device(current_device()); }
};

// PyTorch keeps the pointer for ever.
[[maybe_unused]] const bool is_registered = [] {
  static SpyreStubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  return true;
}();

}  // namespace
}  // namespace spyre
