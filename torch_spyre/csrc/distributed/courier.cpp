#include "distributed/courier.h"

#include <chrono>
#include <thread>

namespace spyre::distributed {
namespace {
constexpr auto kLinger = std::chrono::seconds(2);
}

void Courier::post(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (is_served_) {
    wake_.notify_one();
    return;
  }
  try {
    std::thread([courier = shared_from_this()] { courier->serve(); }).detach();
    is_served_ = true;
  } catch (...) {  // there are too many threads
    tasks_.pop_back();
    throw;
  }
}

void Courier::serve() {
  std::unique_lock lock(mutex_);
  while (wake_.wait_for(lock, kLinger, [&] { return !tasks_.empty(); })) {
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it kept alive ends without the lock
    lock.lock();
  }
  is_served_ = false;
}

}  // namespace spyre::distributed
