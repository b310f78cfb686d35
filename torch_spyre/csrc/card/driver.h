// The driver interface: all that the runtime knows of a card.
//
// The software card is one implementation; the runtime of a physical card would be another.
// Calls never throw torch's exceptions and never take Python's lock. Any thread may call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "figures.h"
#include "formats.h"

namespace spyre {

using Address = uint64_t;  // in the card's memory; multiples of a stick; never a host pointer
using QueueId = int;       // 0 the default, 1..32 low priority, 33..64 high priority
using ProgramId = uint64_t;
using Nanoseconds = int64_t;

inline constexpr int kQueues = 65;

// A point in the card's work: everything enqueued on `queue` up to it. Tickets of one card are
// ordered by `sequence`; 0 is always done.
struct Ticket {
  uint64_t sequence = 0;
  Nanoseconds end = 0;    // on the card's clock
  QueueId queue = -1;     // whose work it marks; -1: not known
  Nanoseconds start = 0;  // of the work that it was given for
};

// ---- Errors -----------------------------------------------------------------------------------

class OutOfMemory : public std::runtime_error {
 public:
  OutOfMemory(const std::string& what, bool host_is_full)
      : std::runtime_error(what), host_is_full(host_is_full) {}
  bool host_is_full;  // the host ran out, not the card
};

// A fault of the card (CheckFailed: of a program, found by checked mode). Sticky: after it, work
// already queued and new work is dropped and every synchronising call throws it again, until
// `reset`.
class CardFault : public std::runtime_error {
 public:
  enum class Kind { DmaError, EccError, CoreHang, CardLost, Internal, CheckFailed, IndexError };
  CardFault(Kind kind, const std::string& what) : std::runtime_error(what), kind(kind) {}
  Kind kind;
};

const char* fault_name(CardFault::Kind kind);

// A value did not fit its format on the way to the card. Not sticky: thrown by the wait for that
// very transfer, or, when nobody waits for it, by the next synchronising call, once.
class ConversionOverflow : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// ---- Copies -----------------------------------------------------------------------------------

// One loop nest of a transfer, outermost loop first. Strides and offsets count elements, on the
// host from the pointer given with the transfer, on the card from the address.
struct DmaNest {
  std::vector<int64_t> range;
  std::vector<int64_t> device_stride;
  std::vector<int64_t> host_stride;
  int64_t device_offset = 0;
  int64_t host_offset = 0;
  bool is_padding = false;  // to the card only: write zeros, there is no host side
};

struct DmaDescriptor {
  DataFormat device_format = DataFormat::INVALID;
  HostFormat host_format = HostFormat::Float32;
  std::vector<DmaNest> nests;
  int64_t device_bytes = 0;  // addresses formed stay below this (checked when the driver sees it)
  int64_t host_bytes = 0;    // offsets formed stay within [0, host_bytes) (checked likewise)
  bool allows_undefined = false;  // to the host: checked mode lets pass what was never written
};

// Keeps what a queued transfer or launch uses alive until it has run.
using Keepalive = std::shared_ptr<void>;

// ---- Launches ---------------------------------------------------------------------------------

// What a launch binds to a symbol of the program.
struct Binding {
  uint64_t value = 0;  // Address: the address; Scalar: the 32-bit word; Extent: the length
  int64_t bytes = 0;   // Address: how many bytes from there the launch may touch
};

// Names for reports, which may be missing: only checked mode uses them.
struct StepName {
  std::string op;                    // of the operation, as the compiler calls it
  std::vector<std::string> buffers;  // per operand; "": not known. Two operands in LX, or of one
                                     // symbol, have the same name exactly if they mean one buffer
  std::string source;                // "model.py:41 y = x + 1"
};
struct ProgramNames {
  std::string kernel;
  std::vector<StepName> steps;  // one per step, or none
};

// ---- Exchanges --------------------------------------------------------------------------------

// Data that cards send each other, over a link that carries both directions at once. Who brings it
// from card to card is not the card's affair: the exchange begins when what it comes after is done
// and the link has begun everything of its line that was asked for before it, and it is over when
// `finish` is called. Several may be under way; they may end in any order.
struct Exchange {
  // Called on the link's thread, which serves all exchanges: it must not wait for other cards.
  // Dropped without a call if the card has a fault. `finish` may be called from any thread.
  using Begin = std::function<void(std::function<void()> finish)>;
  Ticket after;
  int64_t bytes_out = 0, bytes_in = 0;  // over this card's link
  Begin begin;
  // Exchanges of other lines do not wait for it: a send need not wait for what a receive waits for.
  uintptr_t line = 0;
};

// ---- Figures ----------------------------------------------------------------------------------

// What one launch of a program takes.
struct ProgramFigures {
  Nanoseconds nanoseconds = 0;                // modelled
  int64_t bytes_read = 0, bytes_written = 0;  // LPDDR5
  int cores = 0;
  int64_t lx_bytes = 0;            // of the core that uses most
  std::vector<StepFigures> steps;  // in the program's order
};

struct CardProperties {
  std::string name;
  int64_t total_memory = 0;
  int cores = 0;
  int64_t lx_bytes = 0;
  int stick_bytes = 0;
  int host_threads = 0;
  // Limits, per nanosecond: multiply-adds of 16 bits on all cores, and bytes one way.
  double mac_rate = 0, memory_rate = 0, pcie_rate = 0;
};

struct MemoryStats {
  struct Stat {
    int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  };
  Stat allocated_bytes, reserved_bytes, active_bytes, requested_bytes;
  Stat allocations, segments, active_blocks;
  int64_t alloc_retries = 0, ooms = 0;
};

struct Counters {
  int64_t bytes_to_card = 0, bytes_to_host = 0;  // over PCIe
  int64_t bytes_read = 0, bytes_written = 0;     // LPDDR5, by kernels
  int64_t launches = 0, transfers = 0;
  Nanoseconds pt_busy = 0, sfp_busy = 0, memory_busy = 0, lx_busy = 0;
  Nanoseconds to_card_busy = 0, to_host_busy = 0, compute_busy = 0;
  int64_t exchanges = 0, bytes_out = 0, bytes_in = 0;  // with other cards
  Nanoseconds link_busy = 0;
  std::array<int64_t, 32> lx_high_water{};
  // Checked mode: LPDDR5 bytes that kernels really touched, distinct sticks per step and direction.
  int64_t checked_bytes_read = 0, checked_bytes_written = 0;
};

// For tests: what shall go wrong, at the `after`-th next opportunity (0: the next one).
struct Injection {
  CardFault::Kind kind = CardFault::Kind::DmaError;
  Address address = 0;  // EccError: faults when work touches this stick
  int core = 0;         // CoreHang
  int after = 0;
};

// What checked mode looks for. Nothing here changes results.
enum class CheckMode : uint8_t {
  Off,
  Memory,     // padding and unwritten bytes that matter, overlapping buffers, races between cores
  NonFinite,  // also the step that first makes NaN or an infinity of finite numbers
};

struct CardTelemetry;

struct CardConfig {
  int index = 0;
  int64_t memory_bytes = 0;  // 0: the real card's 112 GiB
  int threads = 0;           // 0: as many as the host has
  CheckMode check = CheckMode::Off;
  CardTelemetry* telemetry = nullptr;  // where the card's figures are published; outlives it
};

// ---- The interface ----------------------------------------------------------------------------

class Driver {
 public:
  virtual ~Driver() = default;
  virtual const CardProperties& properties() const = 0;

  // Memory. A block freed on the queue it was allocated for is reused there at once, elsewhere
  // when the work queued at the time of the free is done. Rounds up to whole sticks.
  virtual Address allocate(int64_t bytes, QueueId queue) = 0;  // throws OutOfMemory
  virtual void free(Address address) = 0;
  virtual void record_use(Address address, QueueId queue) = 0;  // also used on that queue
  virtual MemoryStats memory_stats() const = 0;
  virtual void reset_peak_stats() = 0;
  virtual void reset_accumulated_stats() = 0;
  virtual void empty_cache() = 0;  // gives unused host memory back
  virtual int64_t free_memory() const = 0;

  // Work. All of these enqueue and return; none waits.
  virtual Ticket copy_to_card(QueueId queue, Address to, std::shared_ptr<const DmaDescriptor> how,
                              const void* from, Keepalive alive) = 0;
  virtual Ticket copy_to_host(QueueId queue, Address from, std::shared_ptr<const DmaDescriptor> how,
                              void* to, Keepalive alive) = 0;
  virtual ProgramId load(std::span<const std::byte> program,
                         const ProgramNames& names = {}) = 0;  // throws ProgramError
  virtual void unload(ProgramId program) = 0;                  // launches already queued still run
  virtual ProgramFigures figures(ProgramId program) const = 0;
  virtual Ticket launch(QueueId queue, ProgramId program, std::span<const Binding> bindings) = 0;
  virtual Ticket host_function(QueueId queue, std::function<void()> function) = 0;
  virtual Ticket exchange(Exchange exchange) = 0;

  // An exchange's way to the card's memory: copies that are done when the call returns, and that
  // take no time of the card's beyond the exchange's own.
  virtual void read_now(Address from, const DmaDescriptor& how, void* to) = 0;
  virtual void write_now(Address to, const DmaDescriptor& how, const void* from) = 0;

  // Order.
  virtual Ticket record(QueueId queue) = 0;             // all enqueued so far
  virtual void block(QueueId queue, Ticket until) = 0;  // later work of `queue` waits
  virtual bool is_done(Ticket ticket) const = 0;
  virtual bool is_idle(QueueId queue) const = 0;
  virtual void wait(Ticket ticket) = 0;  // throws what went wrong
  virtual void synchronize(QueueId queue) = 0;
  virtual void synchronize() = 0;

  virtual Counters counters() const = 0;
  virtual Nanoseconds now() const = 0;  // the latest end of anything enqueued
  virtual void inject(const Injection& injection) = 0;
  virtual void reset() = 0;  // drops queued work and faults; memory and its contents stay
};

// The software card.
std::unique_ptr<Driver> open_software_card(const CardConfig& config);

}  // namespace spyre
