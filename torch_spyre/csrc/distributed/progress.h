// Who is where: each rank of a group leaves a sign of life in the group's store, twice a second.
//
// Nothing is asked of it while all goes well. When a collective fails, the signs tell which rank
// did not arrive, and which is gone.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "distributed/store_watch.h"

namespace spyre::distributed {

class Progress : public std::enable_shared_from_this<Progress> {
 public:
  // `names` are the global ranks of the group's.
  static std::shared_ptr<Progress> start(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         std::vector<int64_t> names);

  void arrived(uint64_t sequence, const std::string& collective);
  // Told to the others; returns when they have heard it, in case this process holds the store and
  // ends now.
  void failed(const std::string& why);

  // Which ranks are to blame that this collective did not happen; "" if that can't be found out.
  // Takes as long as it takes all to leave another sign, two seconds if one does not; a few more if
  // the store does not answer.
  std::string explain(uint64_t sequence);

  void beat();  // leaves a sign, as long as the store is there
  bool is_lost();

 private:
  struct Sign {
    int64_t beat = -1;  // never seen
    bool has_failed = false;
    uint64_t sequence = 0;
    std::string text;  // the collective, or why it failed
  };

  // All signs, twice: of a rank that lives they differ.
  struct Signs {
    std::vector<Sign> before;
    std::vector<Sign> now;
  };

  Progress(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int64_t> names);
  std::vector<Sign> signs();
  void listen();                         // for the first failure of the group
  std::optional<Signs> signs_in_time();  // none if the store can't be reached
  bool have_all_moved(const Signs& seen) const;
  std::string rank_name(size_t rank) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const StoreWatch watch_;
  const int rank_;
  const std::vector<int64_t> names_;
  std::mutex mutex_;  // never held while the store is asked: it may not answer
  Sign own_;
  std::string heard_;  // which rank failed first, and why
  std::atomic<bool> is_lost_{false};
};

// Before the process ends: no more signs.
void stop_signs();

}  // namespace spyre::distributed
