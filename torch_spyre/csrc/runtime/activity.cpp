#include "runtime/activity.h"

#include <ThreadUtil.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace spyre {

std::atomic<bool> activity_detail::is_on{false};

namespace {

constexpr int kEnginesShown = 3;  // of kernels, and of transfers in each direction

// One card's work on the host's clock.
struct Timeline {
  std::array<int64_t, kQueues> queue_end{};
  std::array<int64_t, kEnginesShown> engine_end{};
  std::unordered_map<uint64_t, int64_t> end_of;  // tickets
};

struct Recorder {
  std::mutex mutex;
  std::vector<Activity> activities;
  std::array<Timeline, kMaxCards> timelines;
};

Recorder& recorder() {
  static Recorder* one = new Recorder();  // threads may outlive statics
  return *one;
}

thread_local std::vector<uint64_t> correlations;

}  // namespace

int64_t host_now() {
  if (!is_recording()) return 0;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void start_recording() {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  all.activities.clear();
  all.timelines = {};
  activity_detail::is_on = true;
}

std::vector<Activity> stop_recording() {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  activity_detail::is_on = false;
  return std::exchange(all.activities, {});
}

void record_activity(Activity activity, const Ticket& ticket) {
  if (activity.asked == 0) return;
  activity.launched = host_now();
  activity.thread = libkineto::systemThreadId();
  activity.duration = ticket.end - ticket.start;
  activity.correlation = correlations.empty() ? 0 : correlations.back();
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  if (!is_recording()) return;
  Timeline& timeline = all.timelines[activity.device];
  int64_t& queue_end = timeline.queue_end[activity.queue];
  int64_t& engine_end = timeline.engine_end[static_cast<size_t>(activity.kind)];
  activity.start = std::max({activity.launched, queue_end, engine_end});
  queue_end = engine_end = activity.start + activity.duration;
  timeline.end_of[ticket.sequence] = queue_end;
  all.activities.push_back(std::move(activity));
}

void record_block(c10::DeviceIndex device, QueueId queue, const Ticket& until) {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  Timeline& timeline = all.timelines[device];
  const auto found = timeline.end_of.find(until.sequence);
  if (found != timeline.end_of.end()) {
    timeline.queue_end[queue] = std::max(timeline.queue_end[queue], found->second);
  }
}

void push_correlation(uint64_t id) { correlations.push_back(id); }
void pop_correlation() {
  if (!correlations.empty()) correlations.pop_back();
}

}  // namespace spyre
