// Runs card programs: 32 simulated cores with a scratchpad each, carried by host threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "driver.h"
#include "program.h"
#include "step.h"
#include "threads.h"

namespace spyre {

// One thread at a time may call `run`: a kernel has the cores to itself.
class Executor {
 public:
  explicit Executor(ThreadPool& pool, const StepTable& steps = fast_steps());
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Makes `run` give up with a CardFault at its next step, until `resume`. Any thread may call.
  void cancel() { is_cancelled_ = true; }
  void resume() { is_cancelled_ = false; }

  // The bindings fit the program (see SoftwareCard::launch); `device` is the card's address 0.
  void run(const Program& program, std::span<const Binding> bindings, std::byte* device);

 private:
  std::byte* scratchpads();  // mapped on first use

  ThreadPool& pool_;
  const StepTable& steps_;
  std::byte* lx_ = nullptr;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace spyre
