// What a process group does: carries calls from cards to the transport and back.
//
// A call goes through three threads. The caller's describes it and gives it to the card as an
// exchange. The link's, when the card has come to it, takes the inputs out of the card's memory.
// The group's courier brings the bytes to the other ranks, writes the outputs and finishes. Sends
// and receives have a courier per peer and tag, so that none waits for another one.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "distributed/call.h"
#include "distributed/courier.h"
#include "distributed/progress.h"
#include "distributed/transport.h"
#include "distributed/work.h"

namespace spyre::distributed {

// Makes a Gloo backend for CPU tensors. Set by the module, which knows Python; PyTorch's headers
// don't have its class.
using MakeGloo = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout)>;
void set_make_gloo(MakeGloo make);

class Group : public std::enable_shared_from_this<Group> {
 public:
  // `ranks` are the members' global ones. All members make it at the same time, each with a store
  // that no other group uses.
  Group(const c10::intrusive_ptr<c10d::Store>& store, int rank, std::string name,
        std::vector<int64_t> ranks, std::chrono::milliseconds timeout);
  ~Group();

  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  std::chrono::milliseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  uint64_t sequence() const { return sequence_; }
  const std::vector<int64_t>& ranks() const { return ranks_; }  // global

  // Both queue and return. Errors that only this rank can see are thrown at once.
  c10::intrusive_ptr<SpyreWork> collective(Call call);
  // `peer` is -1 for a receive from anybody.
  c10::intrusive_ptr<SpyreWork> point_to_point(Call call, int peer, int tag);

  // Has something failed that leaves the ranks apart?
  bool is_broken();

  // Fails what is under way: nobody will wait for the other ranks any more.
  void abandon(const std::string& why, bool is_end_of_process = false);

 private:
  struct Operation;
  using OperationPtr = std::shared_ptr<Operation>;
  using Body = Bytes (Group::*)(Operation& operation);

  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank);
  OperationPtr make_operation(Call call, int peer, int tag);
  void profile(const Operation& operation, const cost::LinkTraffic& traffic, int64_t asked,
               const Ticket& after, const Ticket& ticket) const;
  c10::intrusive_ptr<SpyreWork> submit(Call call, int peer, int tag, Courier& courier, Body body);
  c10::DeviceIndex device_for(const Call& call);
  Courier& courier_for(cost::Collective what, int peer, int tag);
  void run(Operation& operation, Body body);
  Bytes run_collective(Operation& operation);
  Bytes run_send(Operation& operation);
  Bytes run_receive(Operation& operation);
  std::string title(const Call& call) const;  // for messages
  std::string members() const;
  std::string explained(const Call& call, int peer, const std::string& why);

  const std::string name_;
  const std::vector<int64_t> ranks_;  // global
  std::atomic<std::chrono::milliseconds> timeout_;
  const std::shared_ptr<Progress> progress_;  // from before the others are waited for
  Transport transport_;
  std::atomic<uint64_t> sequence_{0};

  std::mutex mutex_;              // of all below
  c10::DeviceIndex device_ = -1;  // of the first tensor: a group has one card per rank
  QueueId queue_ = -1;            // of the device, for futures and profiles
  std::shared_ptr<Courier> collectives_ = std::make_shared<Courier>();
  std::map<std::tuple<cost::Collective, int, int>, std::shared_ptr<Courier>> couriers_;
  std::map<Operation*, std::weak_ptr<Operation>> under_way_;
  std::string broken_;  // why nothing can be sent any more
};

// Of all groups of the process, before it ends.
void abandon_all(const std::string& why);

}  // namespace spyre::distributed
