// A program and where it is loaded: what eager plans and compiled kernels have in common.
#pragma once

#include <array>
#include <atomic>
#include <span>
#include <string>
#include <string_view>

#include "runtime/cards.h"

namespace spyre {

// The bytes of a program, loaded on each card on first use and unloaded with the object.
class CardProgram {
 public:
  // Set before the first launch, then left alone.
  std::string bytes;
  ProgramNames names;  // for reports of the card

  CardProgram() = default;
  CardProgram(const CardProgram&) = delete;
  CardProgram& operator=(const CardProgram&) = delete;
  ~CardProgram();

  bool empty() const { return bytes.empty(); }

  // Loads it there if it is not yet: validated, not run. Throws as PyTorch does.
  ProgramId loaded(c10::DeviceIndex device) const;

  // Queues a launch on the current stream of the device; `name` is for profiles of programs that
  // have none.
  void launch(c10::DeviceIndex device, std::span<const Binding> bindings,
              std::string_view name = {}) const;

 private:
  mutable std::array<std::atomic<ProgramId>, kMaxCards> loaded_{};  // id + 1; 0: not loaded
};

}  // namespace spyre
