#include "distributed/transport.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>

namespace spyre::distributed {
namespace {

using c10d::Work;
using std::chrono::milliseconds;

at::Tensor tensor_of(std::span<const std::byte> bytes) {
  // Gloo takes tensors to write to; what it only reads it leaves alone.
  return at::from_blob(const_cast<std::byte*>(bytes.data()), static_cast<int64_t>(bytes.size()),
                       at::TensorOptions().dtype(at::kByte));
}

void finish(const c10::intrusive_ptr<Work>& work, const Deadline& deadline) {
  work->wait(deadline.left());
}

}  // namespace

milliseconds Deadline::left() const {
  const auto left = end_ - std::chrono::steady_clock::now();
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(left));
}

Bytes Transport::all_gather(std::span<const std::byte> own, const Deadline& deadline) {
  Bytes all(own.size() * static_cast<size_t>(size()));
  at::Tensor output = tensor_of(all);
  at::Tensor input = tensor_of(own);
  c10d::AllgatherOptions options;
  options.timeout = deadline.left();
  finish(gloo_->_allgather_base(output, input, options), deadline);
  return all;
}

Bytes Transport::all_to_all(std::span<const std::byte> buffer, const std::vector<int64_t>& send,
                            const std::vector<int64_t>& receive, const Deadline& deadline) {
  Bytes all(static_cast<size_t>(std::accumulate(receive.begin(), receive.end(), int64_t{0})));
  at::Tensor output = tensor_of(all);
  at::Tensor input = tensor_of(buffer);
  std::vector<int64_t> output_splits = receive;
  std::vector<int64_t> input_splits = send;
  c10d::AllToAllOptions options;
  options.timeout = deadline.left();
  finish(gloo_->alltoall_base(output, input, output_splits, input_splits, options), deadline);
  return all;
}

void Transport::broadcast(std::span<std::byte> buffer, int root, const Deadline& deadline) {
  std::vector<at::Tensor> tensors{tensor_of(buffer)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = deadline.left();
  finish(gloo_->broadcast(tensors, options), deadline);
}

void Transport::send(std::span<const std::byte> buffer, int to, int tag, const Deadline& deadline) {
  std::vector<at::Tensor> tensors{tensor_of(buffer)};
  finish(gloo_->send(tensors, to, tag), deadline);
}

void Transport::receive(std::span<std::byte> buffer, int from, int tag, const Deadline& deadline) {
  std::vector<at::Tensor> tensors{tensor_of(buffer)};
  finish(gloo_->recv(tensors, from, tag), deadline);
}

int Transport::receive_from_any(std::span<std::byte> buffer, int tag, const Deadline& deadline) {
  std::vector<at::Tensor> tensors{tensor_of(buffer)};
  const c10::intrusive_ptr<Work> work = gloo_->recvAnysource(tensors, tag);
  finish(work, deadline);
  return work->sourceRank();
}

}  // namespace spyre::distributed
