#include "runtime/activity.h"

#include <ThreadUtil.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace spyre {

std::atomic<uint8_t> activity_detail::listeners{0};

namespace {

constexpr int kEnginesShown = 4;  // of kernels, of transfers in each direction, and the link

// One card's work on the host's clock.
struct Timeline {
  std::array<int64_t, kQueues> queue_end{};
  std::array<int64_t, kEnginesShown> engine_end{};
  std::unordered_map<uint64_t, int64_t> end_of;  // tickets
};

struct Recorder {
  std::mutex mutex;
  std::array<Recording, 2> kept;  // by listener
  std::array<Timeline, kMaxCards> timelines;

  Recording& of(Listener listener) { return kept[static_cast<size_t>(listener)]; }
};

Recorder& recorder() {
  static Recorder* one = new Recorder();  // threads may outlive statics
  return *one;
}

uint8_t bit(Listener listener) { return 1 << static_cast<uint8_t>(listener); }

thread_local std::vector<uint64_t> correlations;
thread_local std::vector<uint64_t> ranges;

void extend(Range& range, const Activity& activity) {
  if (range.start == 0) range.start = activity.start;
  range.end = activity.start + activity.duration;
}

}  // namespace

int64_t host_now() {
  if (!is_recording()) return 0;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void start_recording(Listener listener) {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  all.of(listener) = {};
  if (!is_recording()) all.timelines = {};
  activity_detail::listeners |= bit(listener);
}

Recording stop_recording(Listener listener) {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  activity_detail::listeners &= static_cast<uint8_t>(~bit(listener));
  return std::exchange(all.of(listener), {});
}

size_t recorded(Listener listener) {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  return all.of(listener).activities.size();
}

void record_activity(Activity activity, const Ticket& ticket) {
  if (activity.asked == 0) return;
  activity.launched = host_now();
  activity.thread = libkineto::systemThreadId();
  activity.begin = ticket.start;
  activity.duration = ticket.end - ticket.start;
  activity.correlation = correlations.empty() ? 0 : correlations.back();
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  Timeline& timeline = all.timelines[activity.device];
  int64_t& queue_end = timeline.queue_end[activity.queue];
  int64_t& engine_end = timeline.engine_end[static_cast<size_t>(activity.kind)];
  activity.start = std::max({activity.launched, queue_end, engine_end});
  queue_end = engine_end = activity.start + activity.duration;
  timeline.end_of[ticket.sequence] = queue_end;
  for (const Listener listener : {Listener::Profiler, Listener::Explanation}) {
    if (!(activity_detail::listeners & bit(listener))) continue;
    Recording& kept = all.of(listener);
    for (const uint64_t id : ranges) {
      extend(kept.ranges[{activity.device, activity.queue, id}], activity);
    }
    kept.activities.push_back(activity);
  }
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
void push_range(uint64_t id) { ranges.push_back(id); }
void pop_range() {
  if (!ranges.empty()) ranges.pop_back();
}

}  // namespace spyre
