// The card's memory: who owns which sticks, and which of them the host has to provide.
//
// Allocation is best fit with coalescing over one range of addresses. A freed block that queued
// work may still use waits in *limbo*: its own queue may have it again at once (that queue runs
// in order), the others when the work is done.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "address_space.h"
#include "driver.h"

namespace spyre {

// What memory has to know of the card's queues. Called with memory's lock held, except for
// `wait_quietly`, so the implementation must never call memory with a lock of its own held.
class WorkTracker {
 public:
  virtual ~WorkTracker() = default;
  virtual Ticket record(QueueId queue) = 0;
  virtual bool is_done(Ticket ticket) const = 0;
  virtual bool is_drained() const = 0;           // nothing enqueued is left
  virtual void wait_quietly(Ticket ticket) = 0;  // throws no fault
};

// Unused granules beyond this are given back at once; up to it they are kept, because committing
// and zeroing them again costs more than most kernels.
inline constexpr int64_t kKeptBytes = int64_t{1} << 30;

class Memory {
 public:
  // `host_available` tells how much the host has left (tests bring their own host). What is used is
  // published, if somebody may look.
  Memory(int card, int64_t bytes, WorkTracker& work, std::function<int64_t()> host_available,
         CardTelemetry* telemetry = nullptr);

  Address allocate(int64_t bytes, QueueId queue);
  void free(Address address);
  void record_use(Address address, QueueId queue);

  MemoryStats stats() const;
  void reset_peak_stats();
  void reset_accumulated_stats();
  void empty_cache();
  int64_t free_bytes() const;

  // Do these bytes lie in one live block?
  bool is_allocated(Address address, int64_t bytes) const;
  std::byte* data() const { return space_.data(); }  // address 0

 private:
  enum class State : uint8_t { Free, Limbo, Allocated };

  struct Block {
    int64_t bytes = 0;
    State state = State::Free;
    QueueId home = 0;
    int64_t requested = 0;
    std::bitset<kQueues> users;        // other queues that used it
    Ticket home_until;                 // Limbo: the work of `home` at the time of the free
    std::vector<Ticket> users_until;   // Limbo: that of the users
    std::list<Address>::iterator age;  // Limbo: its place in `aging_`
  };
  using Blocks = std::map<Address, Block>;
  using BySize = std::set<std::pair<int64_t, Address>>;

  Blocks::iterator find_live(Address address, const char* what);
  bool take(int64_t bytes, int64_t requested, QueueId queue, Address* address);
  Blocks::iterator find_in_limbo(int64_t bytes, int64_t at_most, QueueId queue);
  Address use(Blocks::iterator block, int64_t bytes, int64_t requested, QueueId queue);
  bool are_users_done(const Block& block) const;

  // Limbo.
  void enter_limbo(Blocks::iterator block);
  void leave_limbo(Blocks::iterator block);
  void release_done(size_t scan);
  std::vector<Ticket> limbo_tickets() const;

  // The free pool.
  void make_free(Blocks::iterator block);
  void provide(Address address, int64_t bytes);
  std::vector<int64_t> missing_granules(Address address, int64_t bytes) const;
  void set_idle(int64_t granule, bool idle);
  void retire_granules(Address begin, Address end, Address free_begin, Address free_end);
  void trim(int64_t keep_granules);
  bool host_admits(int64_t bytes);

  [[noreturn]] void throw_out_of_memory(int64_t requested) const;
  [[noreturn]] void throw_host_full(int64_t bytes) const;
  void update_reserved();
  void publish() const;

  const int card_;
  const int64_t total_;
  WorkTracker& work_;
  const std::function<int64_t()> host_available_;
  CardTelemetry* const telemetry_;

  mutable std::mutex mutex_;
  AddressSpace space_;
  Blocks blocks_;  // all of them, without gaps
  BySize free_;
  std::vector<BySize> limbo_;  // per home queue
  std::list<Address> aging_;   // all blocks in limbo, oldest first
  std::vector<bool> is_idle_;  // granules that are committed and hold no block
  int64_t idle_granules_ = 0;
  int64_t host_budget_ = 0;  // what may be committed before the host is asked again
  MemoryStats stats_;
};

}  // namespace spyre
