#include "runtime/pinned.h"

#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <mutex>

#include "runtime/cards.h"

namespace spyre {
namespace {

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(std::max<size_t>(bytes, 1));
    const std::lock_guard lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(data)] = bytes;
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(bytes);
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(bytes);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }

  bool contains(const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    const std::lock_guard lock(mutex_);
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) {
      return false;
    }
    --after;
    return address < after->first + std::max<size_t>(after->second, 1);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  // A queued copy keeps its block alive until it has run, so a free needs no event.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}  // nothing is cached

  at::HostStats get_stats() override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    const std::lock_guard lock(mutex_);
    for (auto* stat : all_stats()) {
      stat->reset_accumulated();
    }
  }
  void reset_peak_stats() override {
    const std::lock_guard lock(mutex_);
    for (auto* stat : all_stats()) {
      stat->reset_peak();
    }
  }

 private:
  static void release(void* data);

  void forget(void* data) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(reinterpret_cast<uintptr_t>(data));
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(block->second);
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(block->second);
    blocks_.erase(block);
  }

  std::array<c10::CachingAllocator::Stat*, 4> all_stats() {
    return {&stats_.allocations, &stats_.allocated_bytes, &stats_.active_requests,
            &stats_.active_bytes};
  }

  std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;
  at::HostStats stats_;
};

PinnedAllocator& instance() {
  static PinnedAllocator* allocator = new PinnedAllocator();  // outlives every block
  return *allocator;
}

void PinnedAllocator::release(void* data) {
  if (!is_bad_fork()) {  // in a forked child an engine of the parent may seem to hold the lock
    instance().forget(data);
  }
  c10::free_cpu(data);
}

[[maybe_unused]] const bool registered = [] {
  at::setHostAllocator(c10::kPrivateUse1, &instance());
  return true;
}();

}  // namespace

at::HostAllocator& pinned_allocator() { return instance(); }
bool is_pinned(const void* data) { return instance().contains(data); }

}  // namespace spyre
