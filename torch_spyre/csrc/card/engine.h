// The card's queues and the engines that serve them.
//
// A queue is an order of work, an engine a thread that does one kind of it. When work is
// enqueued its start and end on the card's clock are fixed: it starts when its queue and its
// engine are free, and not before what the host has already waited for. When it really runs is
// another matter, decided by the host; only the order is the same. Dependencies always point to
// work enqueued earlier, and engines run in order, so the oldest unfinished job can always run:
// nothing here can deadlock. Exchanges with other cards end when others say so; the link only
// begins them, and none has to wait for another of a different line.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"
#include "memory.h"

namespace spyre {

enum class EngineId : uint8_t { Compute, ToCard, ToHost, Host, Link };
inline constexpr int kEngines = 5;

struct Job {
  EngineId engine = EngineId::Compute;
  QueueId queue = 0;
  Nanoseconds duration = 0;
  // Waking an engine takes longer than the job: run on the submitting thread if it may start now.
  bool is_small = false;
  bool is_begun_only = false;  // `run` begins it, `finish_exchange` ends it
  uintptr_t line = 0;          // of an exchange
  // Throws CardFault (sticky) or ConversionOverflow (reported once); anything else is a fault too.
  std::function<void()> run;
  Keepalive alive;  // released after `run`, before the job counts as done, without a lock held
};

class Scheduler final : public WorkTracker {
 public:
  // The clock and a fault are published, if somebody may look.
  explicit Scheduler(int card, CardTelemetry* telemetry = nullptr);
  ~Scheduler() override;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Drops what has not started and everything to come, and waits for what runs.
  void stop();

  // Fixes start and end; runs later, or at once if small. Dropped while the card has a fault.
  Ticket enqueue(Job job);

  // An exchange takes as long as the busier direction. It is in no queue: later work of the queue
  // that it comes after does not wait for it.
  Ticket enqueue_exchange(Exchange exchange, Nanoseconds out, Nanoseconds in);

  Ticket record(QueueId queue) override;
  void block(QueueId queue, Ticket until);
  bool is_done(Ticket ticket) const override;
  bool is_drained() const override;
  bool is_idle(QueueId queue) const;
  void wait(Ticket ticket);
  void wait_quietly(Ticket ticket) override;
  void synchronize(QueueId queue);
  void synchronize();

  Nanoseconds now() const;
  bool has_fault() const;
  // Drops queued work, waits for what runs, forgets faults. Not to be called by work itself.
  void reset();

 private:
  struct Queue {
    uint64_t tail = 0;  // its last job
    Nanoseconds end = 0;
  };
  struct Entry {
    uint64_t sequence = 0;
    Job job;
    std::thread::id submitter;
  };
  struct Engine {
    std::deque<Entry> jobs;
    Nanoseconds end = 0;
    bool is_busy = false;  // a job runs, on its own thread or on a submitting one
    std::condition_variable wake;
    std::thread thread;
  };
  // What is known of a job that is not done, or that waits for an older one to leave the window.
  struct Pending {
    int engine = -1;  // none: a marker, done as soon as what it waits for is
    int waiting_for = 0;
    bool is_done = false;
    std::vector<uint64_t> dependents;
  };
  struct Overflow {
    uint64_t sequence = 0;
    QueueId queue = 0;
    std::thread::id submitter;
    bool is_reported = false;
    std::string what;
  };

  // How a job failed, if it did: at most one of the two.
  struct Failure {
    std::optional<CardFault> fault;
    std::optional<std::string> overflow;
  };

  void check(QueueId queue) const;
  void check(Ticket ticket) const;

  // All of these under the lock.
  bool is_done_locked(uint64_t sequence) const;
  Pending* find(uint64_t sequence);
  void advance(Nanoseconds end);      // what the card's clock shows
  void catch_up(Queue& queue) const;  // what the host has seen is past for every queue
  uint64_t add_pending(int engine);
  void depend(uint64_t sequence, uint64_t on);
  // The job that may start now, or the end.
  std::deque<Entry>::iterator next_job(Engine& engine);
  bool can_start(Engine& engine) { return next_job(engine) != engine.jobs.end(); }
  void wake_if_ready(Engine& engine);
  void finish(uint64_t sequence);
  void drop_queued(std::vector<Entry>& dropped);
  void set_fault(const std::optional<CardFault>& fault);
  void throw_fault() const;
  void throw_overflow(const std::function<bool(const Overflow&)>& concerns);

  void start_threads();
  void serve(Engine& engine);
  Failure run(const Job& job) const;
  void run_next(Engine& engine, std::unique_lock<std::mutex>& lock);
  void report(const Entry& entry, const Failure& failure, std::vector<Entry>& dropped);
  void finish_exchange(uint64_t sequence);

  const int card_;
  CardTelemetry* const telemetry_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::array<Queue, kQueues> queues_;
  std::array<Engine, kEngines> engines_;
  std::deque<Pending> window_;  // jobs from `first_unfinished_` on
  std::atomic<uint64_t> first_unfinished_{1};
  uint64_t last_ = 0;
  Nanoseconds out_end_ = 0, in_end_ = 0;  // of the link
  Nanoseconds now_ = 0;
  Nanoseconds seen_ = 0;  // the latest end that a host thread has waited for
  std::optional<CardFault> fault_;
  std::deque<Overflow> overflows_;
  bool is_stopping_ = false;
};

}  // namespace spyre
