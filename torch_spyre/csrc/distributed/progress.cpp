#include "distributed/progress.h"

#include <chrono>
#include <future>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace spyre::distributed {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(500);
// How long a rank may be silent: a few beats, for a machine with more processes than processors.
constexpr auto kSilence = std::chrono::seconds(2);
// Calls of a store end when its connection does. A machine that is cut off ends none.
constexpr auto kPatience = std::chrono::seconds(5);

// The thread that beats for all groups of the process. Never destroyed: it may outlive main().
class Heart {
 public:
  static Heart& instance() {
    static Heart* heart = new Heart();
    return *heart;
  }

  void add(const std::shared_ptr<Progress>& progress) {
    const std::lock_guard lock(mutex_);
    beating_.push_back(progress);
    if (is_running_) return;
    is_running_ = true;
    std::thread([this] { run(); }).detach();
  }

  void stop() { is_stopped_ = true; }

 private:
  void run() {
    while (!is_stopped_) {
      for (const auto& progress : living()) progress->beat();
      std::this_thread::sleep_for(kInterval);
    }
  }

  std::vector<std::shared_ptr<Progress>> living() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Progress>> found;
    std::erase_if(beating_, [&](const std::weak_ptr<Progress>& weak) {
      auto progress = weak.lock();
      const bool is_over = progress == nullptr || progress->is_lost();
      if (!is_over) found.push_back(std::move(progress));
      return is_over;
    });
    return found;
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<Progress>> beating_;
  bool is_running_ = false;
  std::atomic<bool> is_stopped_{false};
};

constexpr const char* kFailure = "failure";  // the key of the first one

std::string key_of(size_t rank) { return "progress/" + std::to_string(rank); }

std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : "; ") + item;
  return text;
}

}  // namespace

std::shared_ptr<Progress> Progress::start(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                          std::vector<int64_t> names) {
  // Fails at once if the store is gone. A new connection is tried until a time-out.
  store->check({key_of(static_cast<size_t>(rank))});
  // A connection of its own: another thread may wait in the given one for long.
  std::shared_ptr<Progress> progress(new Progress(store->clone(), rank, std::move(names)));
  progress->beat();
  Heart::instance().add(progress);
  return progress;
}

Progress::Progress(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int64_t> names)
    : store_(std::move(store)), watch_(store_), rank_(rank), names_(std::move(names)) {}

bool Progress::is_lost() {
  if (watch_.is_gone()) is_lost_ = true;
  return is_lost_;
}

void Progress::arrived(uint64_t sequence, const std::string& collective) {
  const std::lock_guard lock(mutex_);
  own_.sequence = sequence;
  own_.text = collective;
}

void Progress::failed(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    own_.has_failed = true;
    own_.text = why;
  }
  beat();
  if (is_lost()) return;
  try {
    const std::string first = rank_name(static_cast<size_t>(rank_)) + " failed: " + why;
    if (!store_->check({kFailure})) {
      store_->set(kFailure, std::vector<uint8_t>(first.begin(), first.end()));
    }
    std::this_thread::sleep_for(kInterval + kInterval / 5);
  } catch (const std::exception&) {
    is_lost_ = true;
  }
}

void Progress::listen() {
  {
    const std::lock_guard lock(mutex_);
    if (!heard_.empty()) return;
  }
  if (!store_->check({kFailure})) return;
  const std::vector<uint8_t> text = store_->get(kFailure);
  const std::lock_guard lock(mutex_);
  heard_.assign(text.begin(), text.end());
}

void Progress::beat() {
  if (is_lost()) return;
  std::string sign;
  {
    const std::lock_guard lock(mutex_);
    ++own_.beat;
    sign = std::to_string(own_.beat) + (own_.has_failed ? " 1 " : " 0 ") +
           std::to_string(own_.sequence) + " " + own_.text;
  }
  try {
    store_->set(key_of(rank_), std::vector<uint8_t>(sign.begin(), sign.end()));
    listen();
  } catch (const std::exception&) {
    is_lost_ = true;
  }
}

std::vector<Progress::Sign> Progress::signs() {
  std::vector<Sign> all(names_.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!store_->check({key_of(rank)})) continue;
    const std::vector<uint8_t> bytes = store_->get(key_of(rank));
    std::istringstream text(std::string(bytes.begin(), bytes.end()));
    Sign& sign = all[rank];
    text >> sign.beat >> sign.has_failed >> sign.sequence;
    std::getline(text >> std::ws, sign.text);
  }
  return all;
}

std::optional<Progress::Signs> Progress::signs_in_time() {
  if (is_lost()) return std::nullopt;
  std::packaged_task<Signs()> task([self = shared_from_this()] {
    Signs seen{self->signs(), {}};
    const auto end = std::chrono::steady_clock::now() + kSilence;
    do {
      std::this_thread::sleep_for(kInterval / 2);
      if (self->is_lost()) throw std::runtime_error("the store is gone");
      seen.now = self->signs();
    } while (!self->have_all_moved(seen) && std::chrono::steady_clock::now() < end);
    return seen;
  });
  std::future<Signs> found = task.get_future();
  std::thread(std::move(task)).detach();  // not joined: it may be stuck in the store for good
  try {
    if (found.wait_for(kSilence + kPatience) == std::future_status::ready) return found.get();
  } catch (const std::exception&) {  // of the store: its connection is closed
  }
  is_lost_ = true;
  return std::nullopt;
}

bool Progress::have_all_moved(const Signs& seen) const {
  for (size_t rank = 0; rank < seen.now.size(); ++rank) {
    const bool is_own = static_cast<int>(rank) == rank_;
    const Sign& sign = seen.now[rank];
    if (!is_own && !sign.has_failed && sign.beat == seen.before[rank].beat) return false;
  }
  return true;
}

std::string Progress::rank_name(size_t rank) const {
  return "rank " + std::to_string(names_[rank]);
}

std::string Progress::explain(uint64_t sequence) {
  const std::optional<Signs> signs = signs_in_time();
  if (!signs) {
    const std::lock_guard lock(mutex_);
    if (!heard_.empty()) return heard_;
    return "the store of the group can't be reached: the process that holds it (rank 0, or "
           "torchrun) is gone, or the network to its machine is down";
  }
  const auto& [before, now] = *signs;
  std::vector<std::string> gone;
  std::vector<std::string> late;
  std::vector<std::string> failed;
  for (size_t rank = 0; rank < now.size(); ++rank) {
    const Sign& sign = now[rank];
    if (static_cast<int>(rank) == rank_) continue;
    const std::string last =
        sign.sequence == 0 ? "no collective yet" : sign.text + " #" + std::to_string(sign.sequence);
    if (sign.has_failed) {
      failed.push_back(rank_name(rank) + " failed: " + sign.text);
    } else if (sign.beat < 0) {
      gone.push_back(rank_name(rank) + " has not come to make the group");
    } else if (sign.beat == before[rank].beat) {
      gone.push_back(rank_name(rank) +
                     " gives no sign of life (its last sign, up to half a second before it went: " +
                     last + ")");
    } else if (sign.sequence < sequence) {
      late.push_back(rank_name(rank) + " did not arrive (its last call: " + last + ")");
    }
  }
  gone.insert(gone.end(), late.begin(), late.end());
  return joined(gone.empty() ? failed : gone);
}

void stop_signs() { Heart::instance().stop(); }

}  // namespace spyre::distributed
