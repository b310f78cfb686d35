// Does tasks one after the other, on a thread that comes when there are some and goes when there
// have been none for a while. Posting never blocks. Nobody joins the thread: a task may wait
// for another card as long as its time-out allows, and whoever owned the courier goes on without
// it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace spyre::distributed {

class Courier : public std::enable_shared_from_this<Courier> {
 public:
  using Task = std::function<void()>;  // throws nothing
  void post(Task task);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool is_served_ = false;
};

// The last steps of a call let go of tensors, for which Python's lock may be needed. A thread that
// waits for that lock when Python ends takes the process down with it. While this lives, the
// process does not end; once it ends, nothing must be let go of.
class BeforeTheEnd {
 public:
  BeforeTheEnd();
  bool is_too_late() const;

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

// Waits for all of these; call it without Python's lock. From now on it is too late.
void begin_the_end();

// Lets go of what `owner` has, unless it is too late for that.
template <typename Owner>
void let_go(Owner& owner) {
  const BeforeTheEnd still;
  if (still.is_too_late()) {
    new Owner(std::move(owner));  // never freed: the process ends
  } else {
    owner = Owner();
  }
}

}  // namespace spyre::distributed
