// What cards were asked to do while somebody listens: a record per launch and transfer.
//
// The card's clock does not count the time in which the host leaves it idle. Records are on the
// host's clock, as a trace needs them: work starts when it was launched, or when what it has to
// wait for has ended, its queue's and its engine's last work and events; it takes as long as the
// card's clock says.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "card/driver.h"
#include "runtime/cards.h"

namespace spyre {

// What the steps of a kernel are in the model; equal kernels of different layers share a program,
// but not these.
struct StepLabel {
  std::string op;     // of PyTorch: "aten.mm"
  std::string layer;  // "model.layers.3.mlp"; "": not known
};
using StepLabels = std::vector<StepLabel>;

struct Activity {
  enum class Kind : uint8_t { Kernel, ToCard, ToHost, Exchange };
  Kind kind = Kind::Kernel;
  std::string name;
  c10::DeviceIndex device = 0;
  QueueId queue = 0;
  int64_t asked = 0;                          // when the host began to ask for it, by `host_now`
  int64_t launched = 0;                       // when it had done so
  int64_t start = 0;                          // of the work, on the host's clock
  int32_t thread = 0;                         // of the host
  Nanoseconds begin = 0;                      // of the work, on the card's clock
  Nanoseconds duration = 0;                   // by the card's clock
  uint64_t correlation = 0;                   // of the CPU operation that asked for it; 0: none
  int64_t bytes_read = 0, bytes_written = 0;  // LPDDR5; of a transfer, what went over PCIe
  int64_t program = -1;                       // of a kernel: its number on the card
  std::string peers;                          // of an exchange: the ranks, bytes go out and in
  std::shared_ptr<const ProgramFigures> figures;  // of a kernel
  std::shared_ptr<const StepLabels> labels;       // of a kernel: one per step, or none at all
};

// A range of `record_function` on a queue: from the start of the first work that was asked for in
// it to the end of the last.
struct Range {
  int64_t start = 0, end = 0;
};
struct Recording {
  std::vector<Activity> activities;  // in the order in which work was asked for
  std::map<std::tuple<c10::DeviceIndex, QueueId, uint64_t>, Range> ranges;  // last: correlation
};

// Who listens: each has records of its own, so that a program under explanation may be profiled.
enum class Listener : uint8_t { Profiler, Explanation };

namespace activity_detail {
extern std::atomic<uint8_t> listeners;  // a bit for each
}

// Is somebody listening? All that work costs when nobody is.
inline bool is_recording() {
  return activity_detail::listeners.load(std::memory_order_relaxed) != 0;
}

// The host's clock: nanoseconds since the epoch. 0 if nobody listens.
int64_t host_now();

void start_recording(Listener listener = Listener::Profiler);
Recording stop_recording(Listener listener = Listener::Profiler);
// How many activities there are by now.
size_t recorded(Listener listener);

// Notes work that was just enqueued; `ticket` is what the driver gave for it. Nothing happens if
// `asked` is 0.
void record_activity(Activity activity, const Ticket& ticket);
// Later work of the queue waits for what the ticket marks.
void record_block(c10::DeviceIndex device, QueueId queue, const Ticket& until);

// The CPU operation that this thread is in, and the ranges, as the profiler numbers them.
void push_correlation(uint64_t id);
void pop_correlation();
void push_range(uint64_t id);
void pop_range();

}  // namespace spyre
