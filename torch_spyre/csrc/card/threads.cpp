#include "threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>

namespace spyre {
namespace {

// Waking a thread takes the host longer than many a step; whoever waits looks for a while before
// it sleeps. Others that want the processor get it.
constexpr std::chrono::microseconds kLook{100};

template <typename IsOver>
void look_until(IsOver is_over) {
  const auto end = std::chrono::steady_clock::now() + kLook;
  while (!is_over() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

int host_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    return std::max(1, CPU_COUNT(&allowed));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Shares::Shares(int count, int parts) : count_(count), shares_(static_cast<size_t>(parts)) {
  for (int64_t i = 0; i < parts; ++i) {
    shares_[i].next = static_cast<int>(count * i / parts);
    shares_[i].end = static_cast<int>(count * (i + 1) / parts);
  }
}

bool Shares::has_any() const {
  return std::any_of(shares_.begin(), shares_.end(), [](const Share& share) {
    return share.next.load(std::memory_order_relaxed) < share.end;
  });
}

int Shares::take(int part) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[(static_cast<size_t>(part) + i) % shares_.size()];
    if (share.next.load(std::memory_order_relaxed) >= share.end) continue;
    const int item = share.next.fetch_add(1, std::memory_order_relaxed);
    if (item < share.end) return item;
  }
  return count_;
}

struct ThreadPool::Batch {
  Batch(int count, int threads, const Task& task)
      : count(count), task(task), shares(count, threads) {}

  const int count;
  const Task& task;  // outlives the batch's work: `run` waits for it
  Shares shares;
  // Written under the pool's lock.
  std::atomic<int> finished{0};
  int failed_task = 0;
  std::exception_ptr failure;
};

ThreadPool::ThreadPool(int threads) : threads_(std::max(1, threads)) {}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int count, const Task& task) {
  if (count <= 1 || threads_ == 1) {
    for (int i = 0; i < count; ++i) task(i);
    return;
  }
  auto batch = std::make_shared<Batch>(count, threads_, task);
  std::list<std::shared_ptr<Batch>>::iterator place;
  {
    std::lock_guard lock(mutex_);
    start_workers();
    place = batches_.insert(batches_.end(), batch);
    posted_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_all();
  work_on(*batch, 0);
  look_until([&] { return batch->finished.load(std::memory_order_relaxed) == count; });
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return batch->finished == count; });
  batches_.erase(place);
  lock.unlock();
  if (batch->failure) std::rethrow_exception(batch->failure);
}

void ThreadPool::start_workers() {
  while (static_cast<int>(workers_.size()) < threads_ - 1) {
    const int thread = static_cast<int>(workers_.size()) + 1;
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

void ThreadPool::work(int thread) {
  const CardArithmetic arithmetic;
  std::unique_lock lock(mutex_);
  for (;;) {
    std::shared_ptr<Batch> batch;
    wake_.wait(lock, [&] {
      auto found = std::find_if(batches_.begin(), batches_.end(),
                                [](const auto& candidate) { return candidate->shares.has_any(); });
      if (found != batches_.end()) batch = *found;
      return is_stopping_ || batch;
    });
    if (is_stopping_) return;
    const uint64_t known = posted_.load(std::memory_order_relaxed);
    lock.unlock();
    work_on(*batch, thread);
    look_until([&] { return posted_.load(std::memory_order_relaxed) != known; });
    lock.lock();
  }
}

void ThreadPool::work_on(Batch& batch, int thread) {
  int finished = 0;
  int failed_task = 0;
  std::exception_ptr failure;
  for (int i; (i = batch.shares.take(thread)) < batch.count;) {
    try {
      batch.task(i);
    } catch (...) {
      if (!failure) {
        failure = std::current_exception();
        failed_task = i;
      }
    }
    ++finished;
  }
  if (finished == 0) return;
  std::lock_guard lock(mutex_);
  batch.finished += finished;
  if (failure && (!batch.failure || failed_task < batch.failed_task)) {
    batch.failure = failure;
    batch.failed_task = failed_task;
  }
  if (batch.finished == batch.count) finished_.notify_all();
}

}  // namespace spyre
