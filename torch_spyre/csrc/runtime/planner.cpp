#include "runtime/planner.h"

#include <mutex>
#include <unordered_map>

#include "runtime/dtypes.h"
#include "runtime/strides.h"

namespace spyre {
namespace {

// Enough for any model; a program that keeps making new shapes starts over now and then.
constexpr size_t kMaxEntries = 16384;

template <typename Plan>
class Cache {
 public:
  std::shared_ptr<const Plan> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = plans_.find(key);
    if (found == plans_.end()) {
      ++misses_;
      return nullptr;
    }
    ++hits_;
    return found->second;
  }
  void insert(const std::string& key, std::shared_ptr<const Plan> plan) {
    std::unordered_map<std::string, std::shared_ptr<const Plan>> dropped;  // freed off the lock
    const std::lock_guard lock(mutex_);
    if (plans_.size() >= kMaxEntries) {
      plans_.swap(dropped);
    }
    plans_.emplace(key, std::move(plan));
  }
  void add_to(PlanCacheStats& stats) {
    const std::lock_guard lock(mutex_);
    stats.hits += hits_;
    stats.misses += misses_;
    stats.entries += static_cast<int64_t>(plans_.size());
  }
  void clear() {
    std::unordered_map<std::string, std::shared_ptr<const Plan>> dropped;
    const std::lock_guard lock(mutex_);
    plans_.swap(dropped);
    hits_ = misses_ = 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Plan>> plans_;
  int64_t hits_ = 0, misses_ = 0;
};

struct State {
  std::unique_ptr<Planner> planner;
  Cache<EagerPlan> operations;
  Cache<DmaDescriptor> transfers;
};

State& state() {
  static State* instance = new State();  // plans unload programs: never destroyed
  return *instance;
}

Planner& planner() {
  TORCH_CHECK(state().planner, "torch_spyre has not been imported completely: no planner is set");
  return *state().planner;
}

// Device elements that the nests reach, which a caller's block must have.
int64_t device_reach(const std::vector<DmaNest>& nests) {
  int64_t reach = 0;
  for (const DmaNest& nest : nests) {
    if (const int64_t own = strided_reach(nest.range, nest.device_stride)) {
      reach = std::max(reach, nest.device_offset + own);
    }
  }
  return reach;
}

}  // namespace

void set_planner(std::unique_ptr<Planner> planner) { state().planner = std::move(planner); }

std::shared_ptr<const EagerPlan> cached_operation_plan(const std::string& key,
                                                       const std::string& name,
                                                       const std::vector<ArgumentSpec>& arguments) {
  auto& cache = state().operations;
  if (auto plan = cache.find(key)) {
    return plan;
  }
  auto plan = planner().plan_operation(name, arguments);
  if (plan->resizes.empty()) {
    cache.insert(key, plan);
  }
  return plan;
}

std::shared_ptr<const DmaDescriptor> cached_transfer(const CardView& view,
                                                     c10::ScalarType host_dtype,
                                                     c10::IntArrayRef host_stride,
                                                     bool fill_padding) {
  std::string key;
  key.reserve(256);
  view.append_key(key);
  append_key(key, host_stride);
  append_key(key, static_cast<int64_t>(host_dtype) * 2 + (fill_padding ? 1 : 0));
  auto& cache = state().transfers;
  if (auto plan = cache.find(key)) {
    return plan;
  }
  auto plan = std::make_shared<DmaDescriptor>();
  plan->device_format = view.storage->layout->device_dtype();
  plan->host_format = host_format(host_dtype);
  plan->nests = planner().plan_transfer(view, host_stride, fill_padding);
  plan->device_bytes = device_reach(plan->nests) * element_bytes(plan->device_format);
  plan->host_bytes =
      strided_reach(view.size, host_stride) * static_cast<int64_t>(c10::elementSize(host_dtype));
  cache.insert(key, plan);
  return plan;
}

PlanCacheStats plan_cache_stats() {
  PlanCacheStats stats;
  state().operations.add_to(stats);
  state().transfers.add_to(stats);
  return stats;
}

void clear_plan_cache() {
  state().operations.clear();
  state().transfers.clear();
}

}  // namespace spyre
