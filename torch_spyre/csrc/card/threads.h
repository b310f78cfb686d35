// The host threads that carry simulated cores and slices of transfers.
#pragma once

#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace spyre {

// How many threads this process may use at once.
int host_threads();

// While it lives, this thread rounds to nearest and keeps subnormals, whatever its owner chose
// (`torch.set_flush_denormal`): the card's results don't depend on the host's settings.
class CardArithmetic {
 public:
  CardArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~CardArithmetic() { std::fesetenv(&before_); }
  CardArithmetic(const CardArithmetic&) = delete;
  CardArithmetic& operator=(const CardArithmetic&) = delete;

 private:
  std::fenv_t before_;
};

// Items 0 to `count` - 1, divided among parts. A part takes its own ones in order, then what others
// have left. So the same part works on the same items of one batch after the other, as long as all
// keep pace, and finds what it wrote in the caches of its own host core.
class Shares {
 public:
  Shares(int count, int parts);
  bool has_any() const;
  // The next item for a part; `count` or more if there is none.
  int take(int part);

 private:
  struct alignas(64) Share {
    std::atomic<int> next{0};
    int end = 0;
  };

  const int count_;
  std::vector<Share> shares_;
};

// A pool whose callers work too: `run` with n threads wakes at most n - 1 others. The card's
// engines call it at the same time; their batches share the workers.
class ThreadPool {
 public:
  using Task = std::function<void(int)>;

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls `task(i)` for each i below `count`, in any order, and returns when all are done. The
  // caller begins with the first ones: each thread has a share of its own, see Shares. An
  // exception of a task is thrown again here; of several, the one with the smallest i.
  void run(int count, const Task& task);

 private:
  struct Batch;

  void start_workers();  // under the lock; on first need, so that an unused card costs no thread
  void work(int thread);
  void work_on(Batch& batch, int thread);

  const int threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable finished_;
  std::list<std::shared_ptr<Batch>> batches_;
  std::atomic<uint64_t> posted_{0};  // batches so far; written under the lock
  std::vector<std::thread> workers_;
  bool is_stopping_ = false;
};

}  // namespace spyre
