#include "distributed/transport.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <numeric>

namespace spyre::distributed {
namespace {

using c10d::Work;
using std::chrono::milliseconds;

// Bytes as Gloo takes them, alive as long as anybody has the tensor.
struct Buffer {
  explicit Buffer(Bytes given)
      : bytes(std::make_shared<Bytes>(std::move(given))),
        tensor(at::from_blob(
            bytes->data(), static_cast<int64_t>(bytes->size()), [keep = bytes](void*) {},
            at::TensorOptions().dtype(at::kByte))) {}
  explicit Buffer(size_t size) : Buffer(Bytes(size)) {}

  std::shared_ptr<Bytes> bytes;
  at::Tensor tensor;
};

void finish(const c10::intrusive_ptr<Work>& work, const Deadline& deadline) {
  work->wait(deadline.left());
}

}  // namespace

milliseconds Deadline::left() const {
  const auto left = end_ - std::chrono::steady_clock::now();
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(left));
}

Bytes Transport::all_gather(Bytes own, const Deadline& deadline) {
  Buffer input(std::move(own));
  Buffer output(input.bytes->size() * static_cast<size_t>(size()));
  c10d::AllgatherOptions options;
  options.timeout = deadline.left();
  finish(gloo_->_allgather_base(output.tensor, input.tensor, options), deadline);
  return std::move(*output.bytes);
}

Bytes Transport::all_to_all(Bytes buffer, std::vector<int64_t> send, std::vector<int64_t> receive,
                            const Deadline& deadline) {
  Buffer input(std::move(buffer));
  Buffer output(static_cast<size_t>(std::accumulate(receive.begin(), receive.end(), int64_t{0})));
  c10d::AllToAllOptions options;
  options.timeout = deadline.left();
  finish(gloo_->alltoall_base(output.tensor, input.tensor, receive, send, options), deadline);
  return std::move(*output.bytes);
}

Bytes Transport::broadcast(Bytes buffer, int root, const Deadline& deadline) {
  const Buffer one(std::move(buffer));
  std::vector<at::Tensor> tensors{one.tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = deadline.left();
  finish(gloo_->broadcast(tensors, options), deadline);
  return std::move(*one.bytes);
}

void Transport::send(Bytes buffer, int to, int tag, const Deadline& deadline) {
  std::vector<at::Tensor> tensors{Buffer(std::move(buffer)).tensor};
  finish(gloo_->send(tensors, to, tag), deadline);
}

Bytes Transport::receive(size_t bytes, int from, int tag, const Deadline& deadline) {
  const Buffer into(bytes);
  std::vector<at::Tensor> tensors{into.tensor};
  finish(gloo_->recv(tensors, from, tag), deadline);
  return std::move(*into.bytes);
}

std::pair<Bytes, int> Transport::receive_from_any(size_t bytes, int tag, const Deadline& deadline) {
  const Buffer into(bytes);
  std::vector<at::Tensor> tensors{into.tensor};
  const c10::intrusive_ptr<Work> work = gloo_->recvAnysource(tensors, tag);
  finish(work, deadline);
  return {std::move(*into.bytes), work->sourceRank()};
}

}  // namespace spyre::distributed
