// What a process tells others about its cards: a page of counters in shared memory.
//
// `spyre-smi` reads the page from another process. Publishing costs a launch or an allocation a few
// relaxed stores: no system call, no lock of its own, no thread. Each word is written under the
// lock that guards what it is a copy of, so a reader may find a launch half counted, never half a
// number.
//
// The file is `/dev/shm/torch-spyre.<pid namespace>.<pid>.<start time of the process>`. The name
// says whose it is: a file whose process is gone (killed, or ended by `_exit`) is recognised
// without being read, and removed by the next process that publishes, ends or looks. It is readable
// for its user and for root only, as what somebody does on a card is nobody else's business.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "driver.h"

namespace spyre {

// One card's figures. `spyre_smi/pages.py` knows the order of the words.
struct alignas(64) CardTelemetry {
  using Word = std::atomic<int64_t>;
  static_assert(Word::is_always_lock_free);

  Word is_open{0};
  Word fault{0};  // 0: none, else CardFault::Kind + 1
  Word memory_total{0}, memory_used{0}, memory_reserved{0};
  Word clock{0};
  Word launches{0}, transfers{0};
  Word bytes_to_card{0}, bytes_to_host{0}, bytes_read{0}, bytes_written{0};
  Word pt_busy{0}, sfp_busy{0}, memory_busy{0}, lx_busy{0};
  Word compute_busy{0}, to_card_busy{0}, to_host_busy{0};

  void publish(const Counters& counters);
};
static_assert(sizeof(CardTelemetry) == 192);

class TelemetryPage {
 public:
  static constexpr int kCards = 8;

  // Null if the host has no room for the file: cards work without it. Removes what dead processes
  // left behind.
  static std::unique_ptr<TelemetryPage> create(const std::filesystem::path& directory = "/dev/shm");

  ~TelemetryPage();
  TelemetryPage(const TelemetryPage&) = delete;
  TelemetryPage& operator=(const TelemetryPage&) = delete;

  CardTelemetry& card(int index);

  // Takes the file away, and those of processes that were killed meanwhile, such as another rank of
  // a group; the page itself stays, for cards that are still at work. Does nothing in a child of
  // the process that made it.
  void unlink();

 private:
  struct Header;
  struct Layout;

  TelemetryPage(std::filesystem::path file, Layout* layout);

  const std::filesystem::path file_;
  const int pid_;
  Layout* const layout_;
};

}  // namespace spyre
