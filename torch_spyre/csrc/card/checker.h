// Checked mode: runs programs step by step and follows, in shadow memory, what each byte holds and
// which core used each stick when. A program that works by luck ends with a CardFault that says
// why.
//
// The numbers are computed by the very functions of the fast path. Only the order differs: all
// cores of a step, then the next step. It is one of the orders that a correct program allows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "driver.h"
#include "program.h"
#include "shadow.h"
#include "threads.h"

namespace spyre {

// Distinct sticks of device memory that the steps of a launch touched, in bytes.
struct Touched {
  int64_t read = 0;
  int64_t written = 0;
};

class Checker {
 public:
  Checker(CheckMode mode, int64_t memory_bytes, ThreadPool& pool);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  // Memory and transfers; `device` is the card's address 0, `where` begins a report. Transfers may
  // run while a kernel does.
  void allocated(Address address, int64_t bytes);
  void copied_to_card(Address to, const DmaDescriptor& how, const std::byte* device);
  void check_copy_to_host(Address from, const DmaDescriptor& how, const std::string& where) const;

  // As Executor::run; one thread at a time. Throws CardFault (CheckFailed) at the first finding.
  void run(const Program& program, const ProgramNames& names, std::span<const Binding> bindings,
           std::byte* device, const std::string& where, Touched& touched);
  void cancel() { is_cancelled_ = true; }
  void resume() { is_cancelled_ = false; }

 private:
  struct Release {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  const CheckMode mode_;
  ThreadPool& pool_;
  Shadow device_;
  std::unique_ptr<Shadow> lx_shadow_;  // all cores', one after the other; made on first use
  std::unique_ptr<std::byte, Release> lx_;
  uint32_t runs_ = 0;  // of steps, so far
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace spyre
