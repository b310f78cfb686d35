// Bytes between the processes of a group, over Gloo.
//
// Gloo comes with PyTorch, its headers don't: it is handed in as a c10d backend for CPU tensors,
// and here it sees nothing but bytes. Every call waits; a time-out or a lost connection throws.
// Buffers go in and come out by value: after a time-out Gloo may still be writing to them.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace spyre::distributed {

// When a collective has to be done.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout)
      : end_(std::chrono::steady_clock::now() + timeout) {}
  std::chrono::milliseconds left() const;  // at least one: Gloo takes 0 for no limit

 private:
  std::chrono::steady_clock::time_point end_;
};

using Bytes = std::vector<std::byte>;

class Transport {
 public:
  explicit Transport(c10::intrusive_ptr<c10d::Backend> gloo) : gloo_(std::move(gloo)) {}

  int rank() const { return gloo_->getRank(); }
  int size() const { return gloo_->getSize(); }

  // The same number of bytes from every rank, in the order of the ranks.
  Bytes all_gather(Bytes own, const Deadline& deadline);
  // `send[j]` bytes to rank j, `receive[j]` from it, one after the other in the buffers.
  Bytes all_to_all(Bytes buffer, std::vector<int64_t> send, std::vector<int64_t> receive,
                   const Deadline& deadline);
  // The root's bytes; the others give as many of any kind.
  Bytes broadcast(Bytes buffer, int root, const Deadline& deadline);

  void send(Bytes buffer, int to, int tag, const Deadline& deadline);
  Bytes receive(size_t bytes, int from, int tag, const Deadline& deadline);
  // And from whom.
  std::pair<Bytes, int> receive_from_any(size_t bytes, int tag, const Deadline& deadline);

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
};

}  // namespace spyre::distributed
