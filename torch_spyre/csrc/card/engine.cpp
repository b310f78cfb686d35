#include "engine.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "telemetry.h"
#include "threads.h"

namespace spyre {
namespace {

// Overflows nobody ever asks for are forgotten beyond this many.
constexpr size_t kKeptOverflows = 1024;

}  // namespace

Scheduler::Scheduler(int card, CardTelemetry* telemetry) : card_(card), telemetry_(telemetry) {}

Scheduler::~Scheduler() { stop(); }

void Scheduler::stop() {
  std::vector<Entry> dropped;
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
    drop_queued(dropped);
    for (Engine& engine : engines_) engine.wake.notify_all();
  }
  dropped.clear();
  for (Engine& engine : engines_) {
    if (engine.thread.joinable()) engine.thread.join();
  }
}

void Scheduler::check(QueueId queue) const {
  if (queue < 0 || queue >= kQueues) {
    throw std::invalid_argument("card " + std::to_string(card_) + " has queues 0 to " +
                                std::to_string(kQueues - 1) + ", not " + std::to_string(queue));
  }
}

void Scheduler::check(Ticket ticket) const {
  if (ticket.sequence > last_) {
    throw std::invalid_argument("ticket " + std::to_string(ticket.sequence) + " is not of card " +
                                std::to_string(card_));
  }
}

// ---- Enqueueing --------------------------------------------------------------------------------

Ticket Scheduler::enqueue(Job job) {
  check(job.queue);
  std::unique_lock lock(mutex_);
  Queue& queue = queues_[job.queue];
  if (fault_ || is_stopping_) return {queue.tail, queue.end, job.queue, queue.end};

  start_threads();

  const int index = static_cast<int>(job.engine);
  Engine& engine = engines_[index];
  // Host functions take no time of the card's, so they don't queue up for an engine either.
  catch_up(queue);
  const Nanoseconds start =
      job.engine == EngineId::Host ? queue.end : std::max(queue.end, engine.end);
  queue.end = start + job.duration;
  engine.end = queue.end;
  advance(queue.end);

  const uint64_t sequence = add_pending(index);
  depend(sequence, queue.tail);
  queue.tail = sequence;
  const Ticket ticket{sequence, queue.end, job.queue, start};
  const bool is_small = job.is_small;
  engine.jobs.push_back({sequence, std::move(job), std::this_thread::get_id()});
  if (is_small && engine.jobs.size() == 1 && can_start(engine)) {
    run_next(engine, lock);
  } else {
    wake_if_ready(engine);
  }
  return ticket;
}

Ticket Scheduler::enqueue_exchange(Exchange exchange, Nanoseconds out, Nanoseconds in) {
  const std::lock_guard lock(mutex_);
  check(exchange.after);
  const Ticket& after = exchange.after;
  if (fault_ || is_stopping_) return after;

  start_threads();

  Nanoseconds start = std::max(after.end, seen_);
  if (out > 0) start = std::max(start, out_end_);
  if (in > 0) start = std::max(start, in_end_);
  if (out > 0) out_end_ = start + out;
  if (in > 0) in_end_ = start + in;
  const Nanoseconds end = start + std::max(out, in);
  advance(end);

  const int index = static_cast<int>(EngineId::Link);
  const uint64_t sequence = add_pending(index);
  depend(sequence, after.sequence);
  Job job;
  job.engine = EngineId::Link;
  job.is_begun_only = true;
  job.line = exchange.line;
  job.run = [this, sequence, begin = std::move(exchange.begin)] {
    begin([this, sequence] { finish_exchange(sequence); });
  };
  engines_[index].jobs.push_back({sequence, std::move(job), std::this_thread::get_id()});
  wake_if_ready(engines_[index]);
  return {sequence, end, -1, start};
}

void Scheduler::finish_exchange(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  finish(sequence);
  done_.notify_all();
}

void Scheduler::advance(Nanoseconds end) {
  now_ = std::max(now_, end);
  if (telemetry_ != nullptr) telemetry_->clock.store(now_, std::memory_order_relaxed);
}

void Scheduler::catch_up(Queue& queue) const { queue.end = std::max(queue.end, seen_); }

uint64_t Scheduler::add_pending(int engine) {
  window_.emplace_back().engine = engine;
  return ++last_;
}

void Scheduler::depend(uint64_t sequence, uint64_t on) {
  if (is_done_locked(on)) return;
  find(on)->dependents.push_back(sequence);
  ++find(sequence)->waiting_for;
}

Ticket Scheduler::record(QueueId queue) {
  check(queue);
  std::lock_guard lock(mutex_);
  catch_up(queues_[queue]);
  return {queues_[queue].tail, queues_[queue].end, queue, queues_[queue].end};
}

void Scheduler::block(QueueId queue, Ticket until) {
  check(queue);
  std::lock_guard lock(mutex_);
  check(until);
  Queue& blocked = queues_[queue];
  blocked.end = std::max(blocked.end, until.end);
  if (is_done_locked(until.sequence)) return;
  const uint64_t marker = add_pending(-1);
  depend(marker, until.sequence);
  depend(marker, blocked.tail);
  blocked.tail = marker;
}

// ---- Running -----------------------------------------------------------------------------------

// Engines do their jobs in order. Exchanges have an order within their line only: a rank must not
// keep another waiting for what it could send because of what it can't send yet.
std::deque<Scheduler::Entry>::iterator Scheduler::next_job(Engine& engine) {
  if (engine.is_busy) return engine.jobs.end();
  std::set<uintptr_t> held_up;
  for (auto entry = engine.jobs.begin(); entry != engine.jobs.end(); ++entry) {
    const bool is_ready = find(entry->sequence)->waiting_for == 0;
    if (is_ready && !held_up.contains(entry->job.line)) return entry;
    if (entry->job.engine != EngineId::Link) break;
    held_up.insert(entry->job.line);
  }
  return engine.jobs.end();
}

void Scheduler::wake_if_ready(Engine& engine) {
  if (can_start(engine) && !is_stopping_) engine.wake.notify_one();
}

// Before anything is queued: a thread that the host refuses must not leave half a job behind.
void Scheduler::start_threads() {
  for (Engine& engine : engines_) {
    if (!engine.thread.joinable()) {
      engine.thread = std::thread([this, &engine] { serve(engine); });
    }
  }
}

void Scheduler::serve(Engine& engine) {
  std::unique_lock lock(mutex_);
  for (;;) {
    engine.wake.wait(lock, [&] { return is_stopping_ || can_start(engine); });
    if (is_stopping_) return;
    run_next(engine, lock);
  }
}

void Scheduler::run_next(Engine& engine, std::unique_lock<std::mutex>& lock) {
  const auto next = next_job(engine);
  engine.is_busy = true;
  Entry entry = std::move(*next);
  engine.jobs.erase(next);
  lock.unlock();
  const Failure failure = run(entry.job);
  entry.job.run = nullptr;
  entry.job.alive.reset();
  std::vector<Entry> dropped;
  lock.lock();
  engine.is_busy = false;
  report(entry, failure, dropped);
  if (!entry.job.is_begun_only || failure.fault) finish(entry.sequence);
  done_.notify_all();
  wake_if_ready(engine);
  if (dropped.empty()) return;
  lock.unlock();
  dropped.clear();
  lock.lock();
}

void Scheduler::finish(uint64_t sequence) {
  std::vector<uint64_t> finished{sequence};
  while (!finished.empty()) {
    Pending* job = find(finished.back());
    finished.pop_back();
    if (job == nullptr || job->is_done) continue;
    job->is_done = true;
    for (const uint64_t dependent : job->dependents) {
      Pending* waiting = find(dependent);
      if (waiting == nullptr || --waiting->waiting_for > 0) continue;
      if (waiting->engine < 0) {
        finished.push_back(dependent);
      } else {
        wake_if_ready(engines_[waiting->engine]);
      }
    }
    job->dependents.clear();
  }
  uint64_t first = first_unfinished_.load(std::memory_order_relaxed);
  for (; !window_.empty() && window_.front().is_done; ++first) window_.pop_front();
  first_unfinished_.store(first, std::memory_order_release);
}

// Work that will not run counts as done: nobody shall wait for it.
void Scheduler::drop_queued(std::vector<Entry>& dropped) {
  for (Engine& engine : engines_) {
    for (Entry& entry : engine.jobs) dropped.push_back(std::move(entry));
    engine.jobs.clear();
  }
  for (const Entry& entry : dropped) finish(entry.sequence);
  done_.notify_all();
}

// Without the lock: what an exception says, and its end, may take locks of others (Python's).
Scheduler::Failure Scheduler::run(const Job& job) const {
  const auto internal = [&](const std::string& what) {
    return CardFault(CardFault::Kind::Internal, "Spyre card " + std::to_string(card_) + ", queue " +
                                                    std::to_string(job.queue) +
                                                    ": work failed: " + what);
  };
  try {
    const CardArithmetic arithmetic;
    job.run();
  } catch (const ConversionOverflow& overflow) {
    return {std::nullopt, overflow.what()};
  } catch (const CardFault& fault) {
    return {fault, std::nullopt};
  } catch (const std::exception& other) {
    return {internal(other.what()), std::nullopt};
  } catch (...) {
    return {internal("an exception of unknown type"), std::nullopt};
  }
  return {};
}

void Scheduler::report(const Entry& entry, const Failure& failure, std::vector<Entry>& dropped) {
  if (failure.overflow) {
    if (overflows_.size() == kKeptOverflows) overflows_.pop_front();
    overflows_.push_back(
        {entry.sequence, entry.job.queue, entry.submitter, false, *failure.overflow});
  }
  if (failure.fault) {
    if (!fault_) set_fault(failure.fault);
    drop_queued(dropped);
  }
}

// ---- Asking and waiting ------------------------------------------------------------------------

Scheduler::Pending* Scheduler::find(uint64_t sequence) {
  const uint64_t first = first_unfinished_.load(std::memory_order_relaxed);
  return sequence < first ? nullptr : &window_[sequence - first];
}

bool Scheduler::is_done_locked(uint64_t sequence) const {
  const uint64_t first = first_unfinished_.load(std::memory_order_relaxed);
  return sequence < first || window_[sequence - first].is_done;
}

bool Scheduler::is_done(Ticket ticket) const {
  if (ticket.sequence < first_unfinished_.load(std::memory_order_acquire)) return true;
  std::lock_guard lock(mutex_);
  check(ticket);
  return is_done_locked(ticket.sequence);
}

bool Scheduler::is_drained() const {
  std::lock_guard lock(mutex_);
  return window_.empty();
}

bool Scheduler::is_idle(QueueId queue) const {
  check(queue);
  std::lock_guard lock(mutex_);
  return is_done_locked(queues_[queue].tail);
}

void Scheduler::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  check(ticket);
  done_.wait(lock, [&] { return is_done_locked(ticket.sequence); });
  seen_ = std::max(seen_, ticket.end);
  throw_fault();
  throw_overflow([&](const Overflow& overflow) {
    return overflow.sequence == ticket.sequence ||
           (overflow.queue == ticket.queue && overflow.sequence < ticket.sequence);
  });
}

void Scheduler::wait_quietly(Ticket ticket) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return is_done_locked(ticket.sequence); });
}

void Scheduler::synchronize(QueueId queue) {
  check(queue);
  std::unique_lock lock(mutex_);
  const auto [tail, end] = queues_[queue];
  done_.wait(lock, [&, tail = tail] { return is_done_locked(tail); });
  seen_ = std::max(seen_, end);
  throw_fault();
  throw_overflow([&](const Overflow& overflow) { return overflow.queue == queue; });
}

void Scheduler::synchronize() {
  std::unique_lock lock(mutex_);
  const uint64_t last = last_;
  const Nanoseconds end = now_;
  done_.wait(lock, [&] { return first_unfinished_.load(std::memory_order_relaxed) > last; });
  seen_ = std::max(seen_, end);
  throw_fault();
  throw_overflow([](const Overflow&) { return true; });
}

void Scheduler::set_fault(const std::optional<CardFault>& fault) {
  fault_ = fault;
  if (telemetry_ == nullptr) return;
  const int64_t published = fault ? static_cast<int64_t>(fault->kind) + 1 : 0;
  telemetry_->fault.store(published, std::memory_order_relaxed);
}

void Scheduler::throw_fault() const {
  if (fault_) throw *fault_;
}

// An overflow is told once. When a thread other than the submitting one happens to synchronise
// first it is told there, and kept for the submitter: its blocking copy must not seem to succeed.
void Scheduler::throw_overflow(const std::function<bool(const Overflow&)>& concerns) {
  const std::thread::id caller = std::this_thread::get_id();
  auto found = std::find_if(overflows_.begin(), overflows_.end(), [&](const Overflow& overflow) {
    return concerns(overflow) && (overflow.submitter == caller || !overflow.is_reported);
  });
  if (found == overflows_.end()) return;
  const ConversionOverflow error(found->what);
  if (found->submitter == caller) {
    overflows_.erase(found);
  } else {
    found->is_reported = true;
  }
  throw error;
}

Nanoseconds Scheduler::now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

bool Scheduler::has_fault() const {
  std::lock_guard lock(mutex_);
  return fault_.has_value();
}

void Scheduler::reset() {
  std::vector<Entry> dropped;
  std::unique_lock lock(mutex_);
  drop_queued(dropped);
  done_.wait(lock, [&] {
    return std::none_of(engines_.begin(), engines_.end(),
                        [](const Engine& engine) { return engine.is_busy; });
  });
  set_fault(std::nullopt);
  overflows_.clear();
}

}  // namespace spyre
