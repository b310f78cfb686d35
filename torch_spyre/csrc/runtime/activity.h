// What cards were asked to do while somebody listens: a record per launch and transfer.
//
// The card's clock does not count the time in which the host leaves it idle. Records are on the
// host's clock, as a trace needs them: work starts when it was launched, or when what it has to
// wait for has ended, its queue's and its engine's last work and events; it takes as long as the
// card's clock says.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "card/driver.h"
#include "runtime/cards.h"

namespace spyre {

struct Activity {
  enum class Kind : uint8_t { Kernel, ToCard, ToHost };
  Kind kind = Kind::Kernel;
  std::string name;
  c10::DeviceIndex device = 0;
  QueueId queue = 0;
  int64_t asked = 0;                          // when the host began to ask for it, by `host_now`
  int64_t launched = 0;                       // when it had done so
  int64_t start = 0;                          // of the work, on the host's clock
  int32_t thread = 0;                         // of the host
  Nanoseconds duration = 0;                   // by the card's clock
  uint64_t correlation = 0;                   // of the CPU operation that asked for it; 0: none
  int64_t bytes_read = 0, bytes_written = 0;  // LPDDR5; of a transfer, what went over PCIe
  int cores = 0;                              // of a kernel
  int64_t lx_bytes = 0;                       // of a kernel: the busiest core's
};

namespace activity_detail {
extern std::atomic<bool> is_on;
}

// Is somebody listening? All that work costs when nobody is.
inline bool is_recording() { return activity_detail::is_on.load(std::memory_order_relaxed); }

// The host's clock: nanoseconds since the epoch. 0 if nobody listens.
int64_t host_now();

void start_recording();
// Ends it; the records in the order in which work was asked for.
std::vector<Activity> stop_recording();

// Notes work that was just enqueued; `ticket` is what the driver gave for it. Nothing happens if
// `asked` is 0.
void record_activity(Activity activity, const Ticket& ticket);
// Later work of the queue waits for what the ticket marks.
void record_block(c10::DeviceIndex device, QueueId queue, const Ticket& until);

// The CPU operation that this thread is in, as the profiler numbers them.
void push_correlation(uint64_t id);
void pop_correlation();

}  // namespace spyre
