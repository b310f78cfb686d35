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

}  // namespace spyre::distributed
