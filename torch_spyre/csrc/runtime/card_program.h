// A program and where it is loaded: what eager plans and compiled kernels have in common.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "runtime/activity.h"
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

  // Queues a launch on the current stream of the device; profiles call it `name` and its steps as
  // the labels say.
  void launch(c10::DeviceIndex device, std::span<const Binding> bindings, std::string_view name,
              const std::shared_ptr<const StepLabels>& labels = nullptr) const;

 private:
  std::shared_ptr<const ProgramFigures> figures(c10::DeviceIndex device, ProgramId id) const;

  mutable std::array<std::atomic<ProgramId>, kMaxCards> loaded_{};  // id + 1; 0: not loaded
  mutable std::once_flag has_figures_;
  mutable std::shared_ptr<const ProgramFigures> figures_;  // the same on all cards
};

}  // namespace spyre
