#include "distributed/courier.h"

#include <chrono>
#include <thread>

namespace spyre::distributed {
namespace {

constexpr auto kLinger = std::chrono::seconds(2);

struct End {
  std::shared_mutex mutex;
  bool has_begun = false;
};
End& the_end() {
  static End* one = new End();  // threads may outlive statics
  return *one;
}

}  // namespace

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
    let_go(task);  // without the lock
    lock.lock();
  }
  is_served_ = false;
}

BeforeTheEnd::BeforeTheEnd() : lock_(the_end().mutex) {}

bool BeforeTheEnd::is_too_late() const { return the_end().has_begun; }

void begin_the_end() {
  const std::lock_guard lock(the_end().mutex);
  the_end().has_begun = true;
}

}  // namespace spyre::distributed
