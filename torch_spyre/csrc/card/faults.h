// Faults on demand: tests say what shall go wrong, and the work that it hits fails.
//
// Whether a fault hits is decided when work is enqueued, so it does not depend on timing; it
// strikes when the work runs, so it surfaces at a synchronising call like a real one.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "driver.h"
#include "program.h"

namespace spyre {

class FaultInjector {
 public:
  explicit FaultInjector(int card) : card_(card) {}

  void inject(const Injection& injection);
  void clear();

  // The fault that this piece of work runs into, if any.
  std::optional<CardFault> at_transfer(QueueId queue, const char* direction, Address first,
                                       Address end);
  std::optional<CardFault> at_launch(QueueId queue, const Program& program,
                                     std::span<const Binding> bindings);

 private:
  // The message of each armed injection that applies, by `describe`; nullopt: it does not apply.
  template <typename Describe>
  std::optional<CardFault> strike(Describe describe);
  std::string where(QueueId queue) const;

  const int card_;
  std::atomic<bool> is_armed_{false};  // so that normal work takes no lock
  std::mutex mutex_;
  std::vector<Injection> armed_;
};

}  // namespace spyre
