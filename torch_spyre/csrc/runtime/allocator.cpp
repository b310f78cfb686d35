#include "runtime/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "runtime/cards.h"
#include "runtime/storage.h"
#include "runtime/stream.h"

namespace spyre {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

void fill(c10::CachingAllocator::StatArray& to, const MemoryStats::Stat& from) {
  auto& all = to[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  all.current = from.current;
  all.peak = from.peak;
  all.allocated = from.allocated;
  all.freed = from.freed;
}

// Storages made here don't know their dtype: empty tensors take the other way, through
// `make_storage`. This one serves UntypedStorage(n, device="spyre") and resizes.
class SpyreAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const auto bytes = static_cast<int64_t>(nbytes);
    return allocate_storage(current_device(), untyped_layout(bytes), c10::ScalarType::Undefined,
                            bytes);
  }

  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false,
                "the spyre allocator can't copy by pointer: card memory has none; copy tensors or "
                "storages instead");
  }

  bool initialized() override { return any_open(); }

  void emptyCache(c10::MempoolId_t) override {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      if (is_open(index)) {
        driver(index).empty_cache();
      }
    }
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_use(data, stream);
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const MemoryStats from = driver(device).memory_stats();
    DeviceStats to;
    fill(to.allocation, from.allocations);
    fill(to.segment, from.segments);
    fill(to.active, from.active_blocks);
    fill(to.allocated_bytes, from.allocated_bytes);
    fill(to.reserved_bytes, from.reserved_bytes);
    fill(to.active_bytes, from.active_bytes);
    fill(to.requested_bytes, from.requested_bytes);
    to.num_alloc_retries = from.alloc_retries;
    to.num_ooms = from.ooms;
    to.num_device_alloc = from.segments.allocated;
    to.num_device_free = from.segments.freed;
    return to;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    driver(device).reset_accumulated_stats();
  }

  void resetPeakStats(c10::DeviceIndex device) override { driver(device).reset_peak_stats(); }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    Driver& card = driver(device);
    return {static_cast<size_t>(card.free_memory()),
            static_cast<size_t>(card.properties().total_memory)};
  }
};

SpyreAllocator& instance() {
  static SpyreAllocator* allocator = new SpyreAllocator();  // outlives every storage
  return *allocator;
}

[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(c10::kPrivateUse1, &instance());
  return true;
}();

}  // namespace

c10::DeviceAllocator& device_allocator() { return instance(); }

}  // namespace spyre
