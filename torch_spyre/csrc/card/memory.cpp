#include "memory.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "host_memory.h"
#include "telemetry.h"

namespace spyre {
namespace {

// Address 0 is no block's, so that it can mean "none" in every layer above; its granule is
// never committed.
constexpr Address kFirstAddress = kGranuleBytes;
// How many blocks in limbo an allocation looks at before it settles for another one.
constexpr size_t kLimboScan = 64;
// The host is asked again after this much was committed on the strength of its last answer.
constexpr int64_t kHostBudget = 256 * int64_t{1024 * 1024};

using Stat = MemoryStats::Stat;

void add(Stat& stat, int64_t amount) {
  stat.current += amount;
  stat.allocated += amount;
  stat.peak = std::max(stat.peak, stat.current);
}

void subtract(Stat& stat, int64_t amount) {
  stat.current -= amount;
  stat.freed += amount;
}

template <typename Visit>
void for_each_stat(MemoryStats& stats, Visit visit) {
  for (Stat* stat :
       {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes,
        &stats.allocations, &stats.segments, &stats.active_blocks}) {
    visit(*stat);
  }
}

int64_t granules_for(int64_t bytes) {
  return static_cast<int64_t>(kFirstAddress) / kGranuleBytes +
         (bytes + kGranuleBytes - 1) / kGranuleBytes;
}

int64_t granule_of(Address address) { return static_cast<int64_t>(address / kGranuleBytes); }
int64_t granule_after(Address address) {
  return static_cast<int64_t>((address + kGranuleBytes - 1) / kGranuleBytes);
}

}  // namespace

Memory::Memory(int card, int64_t bytes, WorkTracker& work, std::function<int64_t()> host_available,
               CardTelemetry* telemetry)
    : card_(card),
      total_(bytes / kStickBytes * kStickBytes),
      work_(work),
      host_available_(std::move(host_available)),
      telemetry_(telemetry),
      space_(granules_for(total_)),
      limbo_(kQueues),
      is_idle_(space_.granules(), false) {
  if (total_ > 0) {
    blocks_[kFirstAddress].bytes = total_;
    free_.emplace(total_, kFirstAddress);
  }
}

// ---- The interface -----------------------------------------------------------------------------

Address Memory::allocate(int64_t bytes, QueueId queue) {
  if (bytes < 0) throw std::invalid_argument("an allocation can't have a negative size");
  std::unique_lock lock(mutex_);
  if (bytes > total_) {
    ++stats_.ooms;
    throw_out_of_memory(bytes);
  }
  const int64_t rounded =
      std::max<int64_t>(1, (bytes + kStickBytes - 1) / kStickBytes) * kStickBytes;
  release_done(kLimboScan);
  try {
    Address address = 0;
    if (take(rounded, bytes, queue, &address)) return address;
    // Memory that queued work still holds comes back when the work is done: better wait for it
    // than fail. Without the lock, for that work may free memory itself.
    if (!aging_.empty()) {
      ++stats_.alloc_retries;
      const std::vector<Ticket> tickets = limbo_tickets();
      lock.unlock();
      for (const Ticket& ticket : tickets) work_.wait_quietly(ticket);
      lock.lock();
      release_done(aging_.size());
      if (take(rounded, bytes, queue, &address)) return address;
    }
    throw_out_of_memory(bytes);
  } catch (const OutOfMemory&) {
    ++stats_.ooms;
    throw;
  }
}

void Memory::free(Address address) {
  std::lock_guard lock(mutex_);
  auto block = find_live(address, "free");
  Block& it = block->second;
  subtract(stats_.allocated_bytes, it.bytes);
  subtract(stats_.requested_bytes, it.requested);
  subtract(stats_.allocations, 1);
  publish();
  it.home_until = work_.record(it.home);
  it.users_until.clear();
  for (int queue = 0; queue < kQueues; ++queue) {
    if (!it.users[queue]) continue;
    const Ticket until = work_.record(queue);
    if (!work_.is_done(until)) it.users_until.push_back(until);
  }
  it.users.reset();
  if (it.users_until.empty() && work_.is_done(it.home_until)) {
    subtract(stats_.active_bytes, it.bytes);
    subtract(stats_.active_blocks, 1);
    make_free(block);
    trim(kKeptBytes / kGranuleBytes);
  } else {
    enter_limbo(block);
  }
}

void Memory::record_use(Address address, QueueId queue) {
  std::lock_guard lock(mutex_);
  Block& block = find_live(address, "use")->second;
  if (queue != block.home) block.users.set(queue);
}

MemoryStats Memory::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Memory::reset_peak_stats() {
  std::lock_guard lock(mutex_);
  for_each_stat(stats_, [](Stat& stat) { stat.peak = stat.current; });
}

void Memory::reset_accumulated_stats() {
  std::lock_guard lock(mutex_);
  for_each_stat(stats_, [](Stat& stat) { stat.allocated = stat.freed = 0; });
  stats_.alloc_retries = stats_.ooms = 0;
}

void Memory::empty_cache() {
  std::lock_guard lock(mutex_);
  release_done(aging_.size());
  trim(0);
}

int64_t Memory::free_bytes() const {
  std::lock_guard lock(mutex_);
  return total_ - stats_.active_bytes.current;
}

bool Memory::is_allocated(Address address, int64_t bytes) const {
  std::lock_guard lock(mutex_);
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin() || bytes < 0) return false;
  const auto& [start, block] = *std::prev(after);
  const auto offset = static_cast<int64_t>(address - start);
  return block.state == State::Allocated && offset <= block.bytes && bytes <= block.bytes - offset;
}

Memory::Blocks::iterator Memory::find_live(Address address, const char* what) {
  auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.state != State::Allocated) {
    throw std::invalid_argument("card " + std::to_string(card_) + ": can't " + what + " address " +
                                std::to_string(address) + ", no block starts there");
  }
  return block;
}

// ---- Finding a block ---------------------------------------------------------------------------

bool Memory::take(int64_t bytes, int64_t requested, QueueId queue, Address* address) {
  // The queue's own freed blocks first, where one fits well: they are warm in the host's cache.
  auto block = find_in_limbo(bytes, 2 * bytes, queue);
  if (block == blocks_.end()) {
    if (auto best = free_.lower_bound({bytes, 0}); best != free_.end()) {
      block = blocks_.find(best->second);
    } else {
      block = find_in_limbo(bytes, total_, queue);
    }
  }
  if (block == blocks_.end()) return false;
  *address = use(block, bytes, requested, queue);
  return true;
}

Memory::Blocks::iterator Memory::find_in_limbo(int64_t bytes, int64_t at_most, QueueId queue) {
  size_t seen = 0;
  const BySize& candidates = limbo_[queue];
  for (auto it = candidates.lower_bound({bytes, 0});
       it != candidates.end() && it->first <= at_most && seen < kLimboScan; ++it, ++seen) {
    auto block = blocks_.find(it->second);
    if (are_users_done(block->second)) return block;
  }
  return blocks_.end();
}

bool Memory::are_users_done(const Block& block) const {
  return std::all_of(block.users_until.begin(), block.users_until.end(),
                     [this](const Ticket& ticket) { return work_.is_done(ticket); });
}

// Takes the first `bytes` of a block that is free or in limbo; the rest stays what it was.
Address Memory::use(Blocks::iterator block, int64_t bytes, int64_t requested, QueueId queue) {
  const Address address = block->first;
  Block& it = block->second;
  if (it.state == State::Free) {
    provide(address, bytes);
    free_.erase({it.bytes, address});
  } else {
    leave_limbo(block);
  }
  if (it.bytes > bytes) {
    Block rest = it;
    rest.bytes -= bytes;
    auto remainder = blocks_.emplace_hint(std::next(block), address + bytes, std::move(rest));
    if (it.state == State::Free) {
      free_.emplace(remainder->second.bytes, remainder->first);
    } else {
      enter_limbo(remainder);
    }
  }
  it = Block{};
  it.bytes = bytes;
  it.state = State::Allocated;
  it.home = queue;
  it.requested = requested;
  add(stats_.allocated_bytes, bytes);
  add(stats_.requested_bytes, requested);
  add(stats_.allocations, 1);
  add(stats_.active_bytes, bytes);
  add(stats_.active_blocks, 1);
  publish();
  return address;
}

// ---- Limbo -------------------------------------------------------------------------------------

void Memory::enter_limbo(Blocks::iterator block) {
  Block& it = block->second;
  if (it.state != State::Allocated) {  // split off a block that left limbo: active again
    add(stats_.active_bytes, it.bytes);
    add(stats_.active_blocks, 1);
  }
  it.state = State::Limbo;
  limbo_[it.home].emplace(it.bytes, block->first);
  it.age = aging_.insert(aging_.end(), block->first);
}

void Memory::leave_limbo(Blocks::iterator block) {
  const Block& it = block->second;
  subtract(stats_.active_bytes, it.bytes);
  subtract(stats_.active_blocks, 1);
  limbo_[it.home].erase({it.bytes, block->first});
  aging_.erase(it.age);
}

// Frees those of the `scan` oldest blocks in limbo whose work is done.
void Memory::release_done(size_t scan) {
  for (auto it = aging_.begin(); it != aging_.end() && scan > 0; --scan) {
    auto block = blocks_.find(*it++);
    if (!work_.is_done(block->second.home_until) || !are_users_done(block->second)) continue;
    leave_limbo(block);
    make_free(block);
  }
  trim(kKeptBytes / kGranuleBytes);
}

std::vector<Ticket> Memory::limbo_tickets() const {
  std::vector<Ticket> tickets;
  for (const Address address : aging_) {
    const Block& block = blocks_.at(address);
    tickets.push_back(block.home_until);
    tickets.insert(tickets.end(), block.users_until.begin(), block.users_until.end());
  }
  return tickets;
}

// ---- The free pool -----------------------------------------------------------------------------

void Memory::make_free(Blocks::iterator block) {
  const Address begin = block->first;
  const Address end = begin + block->second.bytes;
  Block merged;
  merged.bytes = block->second.bytes;
  Address start = begin;
  if (auto next = std::next(block); next != blocks_.end() && next->second.state == State::Free) {
    merged.bytes += next->second.bytes;
    free_.erase({next->second.bytes, next->first});
    blocks_.erase(next);
  }
  if (block != blocks_.begin()) {
    if (auto previous = std::prev(block); previous->second.state == State::Free) {
      start = previous->first;
      merged.bytes += previous->second.bytes;
      free_.erase({previous->second.bytes, start});
      blocks_.erase(block);
      block = previous;
    }
  }
  const int64_t bytes = merged.bytes;
  block->second = std::move(merged);
  free_.emplace(bytes, start);
  retire_granules(begin, end, start, start + bytes);
}

// Granules under [begin, end), just freed, are idle if the free block around them covers them.
void Memory::retire_granules(Address begin, Address end, Address free_begin, Address free_end) {
  // The last granule of the card may be larger than its memory: nobody else can be in it.
  const Address card_end = kFirstAddress + total_;
  const int64_t last = free_end == card_end ? space_.granules() : granule_of(free_end);
  for (int64_t granule = std::max(granule_of(begin), granule_after(free_begin));
       granule < std::min(granule_after(end), last); ++granule) {
    set_idle(granule, space_.is_committed(granule));
  }
}

void Memory::set_idle(int64_t granule, bool idle) {
  idle_granules_ += (idle ? 1 : 0) - (is_idle_[granule] ? 1 : 0);
  is_idle_[granule] = idle;
}

std::vector<int64_t> Memory::missing_granules(Address address, int64_t bytes) const {
  std::vector<int64_t> missing;
  for (int64_t granule = granule_of(address); granule < granule_after(address + bytes); ++granule) {
    if (!space_.is_committed(granule)) missing.push_back(granule);
  }
  return missing;
}

// Makes the granules under a block usable, or throws and leaves the blocks as they were.
void Memory::provide(Address address, int64_t bytes) {
  const int64_t first = granule_of(address);
  const int64_t last = granule_after(address + bytes);
  std::vector<int64_t> missing = missing_granules(address, bytes);
  if (!missing.empty() && !host_admits(std::ssize(missing) * kGranuleBytes)) {
    ++stats_.alloc_retries;
    trim(0);
    missing = missing_granules(address, bytes);  // trimming may have taken some of this block's
    const int64_t needed = std::ssize(missing) * kGranuleBytes;
    if (!host_admits(needed)) throw_host_full(needed);
  }
  if (!missing.empty()) {
    try {
      space_.commit(first, last);
    } catch (const OutOfMemory&) {
      for (const int64_t granule : missing) set_idle(granule, space_.is_committed(granule));
      update_reserved();
      throw;
    }
    host_budget_ -= std::ssize(missing) * kGranuleBytes;
    update_reserved();
  }
  for (int64_t granule = first; granule < last; ++granule) set_idle(granule, false);
}

// Gives idle granules back until `keep` are left, the highest first: low addresses are reused
// first. Not while work runs: a kernel that uses memory which its owner freed too early reads
// garbage, as on the real card, but must not bring the process down.
void Memory::trim(int64_t keep) {
  if (idle_granules_ <= keep || !work_.is_drained()) return;
  for (int64_t end = space_.granules(); end > 0 && idle_granules_ > keep;) {
    if (!is_idle_[end - 1]) {
      --end;
      continue;
    }
    int64_t begin = end;
    while (begin > 0 && is_idle_[begin - 1] && idle_granules_ > keep) set_idle(--begin, false);
    space_.decommit(begin, end);
    end = begin;
  }
  update_reserved();
}

// May `bytes` more be committed? Asking the host takes about as long as a small kernel, so its
// answer is used until the budget drawn on it is spent.
bool Memory::host_admits(int64_t bytes) {
  if (bytes <= host_budget_) return true;
  const int64_t left = host_available_() - space_.untouched_bytes() - host_memory_reserve();
  host_budget_ = 0;
  if (bytes > left) return false;
  // A budget only where memory is plentiful; close to the end every commit asks.
  host_budget_ = bytes + std::max<int64_t>(0, std::min(kHostBudget, (left - bytes) / 8));
  return true;
}

void Memory::update_reserved() {
  const int64_t change = space_.committed_bytes() - stats_.reserved_bytes.current;
  if (change > 0) {
    add(stats_.reserved_bytes, change);
    add(stats_.segments, change / kGranuleBytes);
  } else if (change < 0) {
    subtract(stats_.reserved_bytes, -change);
    subtract(stats_.segments, -change / kGranuleBytes);
  }
  publish();
}

void Memory::publish() const {
  if (telemetry_ == nullptr) return;
  telemetry_->memory_used.store(stats_.allocated_bytes.current, std::memory_order_relaxed);
  telemetry_->memory_reserved.store(stats_.reserved_bytes.current, std::memory_order_relaxed);
}

// ---- Errors ------------------------------------------------------------------------------------

void Memory::throw_out_of_memory(int64_t requested) const {
  const int64_t largest = free_.empty() ? 0 : free_.rbegin()->first;
  throw OutOfMemory("Spyre card " + std::to_string(card_) +
                        " is out of memory: tried to allocate " + format_bytes(requested) + ", " +
                        format_bytes(total_ - stats_.active_bytes.current) + " of " +
                        format_bytes(total_) + " are free, the largest free block has " +
                        format_bytes(largest),
                    /*host_is_full=*/false);
}

void Memory::throw_host_full(int64_t bytes) const {
  const int64_t largest = free_.empty() ? 0 : free_.rbegin()->first;
  throw OutOfMemory(
      "the host is out of memory, not Spyre card " + std::to_string(card_) +
          " (its memory is held in the host's): the allocation needs " + format_bytes(bytes) +
          " more, the host has " + format_bytes(std::max<int64_t>(0, host_available_())) +
          " available, of which " + format_bytes(space_.untouched_bytes()) +
          " are promised to blocks already and " + format_bytes(host_memory_reserve()) +
          " kept in reserve; on the card " + format_bytes(total_ - stats_.active_bytes.current) +
          " of " + format_bytes(total_) + " are free, the largest free block has " +
          format_bytes(largest),
      /*host_is_full=*/true);
}

}  // namespace spyre
