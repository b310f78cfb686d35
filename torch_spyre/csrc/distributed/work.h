// What a collective that was asked for gives back: c10d's Work.
//
// `wait` makes the current stream wait for the exchange, as other devices do, and the host as well:
// an error is raised by the call that it belongs to, not by a later one. An error that nobody asked
// for is a warning once the work is let go of.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "card/driver.h"

namespace spyre::distributed {

class SpyreWork final : public c10d::Work {
 public:
  // `queue` is the group's: futures are completed on it.
  SpyreWork(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> results,
            uint64_t sequence, c10::DeviceIndex device, QueueId queue);
  ~SpyreWork() override;

  // The exchange behind it, as soon as the card knows it.
  void set_ticket(const Ticket& ticket) { ticket_.set_value(ticket); }
  // Once; later calls change nothing. An error that only follows from another one is no news.
  void complete(std::exception_ptr error, bool is_news = true);
  // A warning if it failed and nobody knows.
  void tell_error() const;
  void set_source(int rank) { source_ = rank; }

  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return results_; }
  int sourceRank() const override { return source_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void wait_on_host(std::chrono::milliseconds timeout);
  void complete_future(const std::exception_ptr& error);

  std::vector<at::Tensor> results_;
  const uint64_t sequence_;
  const c10::DeviceIndex device_;
  const QueueId queue_;
  int source_ = -1;
  std::atomic<bool> is_completing_{false};
  mutable std::atomic<bool> is_error_told_{false};  // or somebody can still ask the future for it
  std::promise<Ticket> ticket_;
  std::shared_future<Ticket> known_ticket_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::mutex asking_;  // of what follows, and of completing a future that nobody has
  bool is_future_known_ = false;
};

// Several as one.
class JoinedWork final : public c10d::Work {
 public:
  explicit JoinedWork(std::vector<c10::intrusive_ptr<c10d::Work>> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace spyre::distributed
