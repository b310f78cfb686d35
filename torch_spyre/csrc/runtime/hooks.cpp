// What ATen asks of an accelerator beyond the guard: availability, generators, pinned memory.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "runtime/cards.h"
#include "runtime/generator.h"
#include "runtime/pinned.h"
#include "runtime/register.h"
#include "runtime/resize.h"

namespace spyre {
namespace {

struct SpyreHooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  void init() const override { driver(current_device()); }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return is_open(index); }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index);
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Device getDeviceFromPtr(void*) const override {
    TORCH_CHECK(false,
                "a spyre tensor has no address that the host could use: its data pointer is a "
                "handle; copy the tensor with .cpu() instead");
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, static_cast<int64_t>(bytes));
  }
};

}  // namespace

void register_hooks() {
  static SpyreHooks* hooks = new SpyreHooks();  // ATen keeps the pointer for ever
  at::RegisterPrivateUse1HooksInterface(hooks);
}

}  // namespace spyre
