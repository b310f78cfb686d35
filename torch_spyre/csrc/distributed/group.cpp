#include "distributed/group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "distributed/collectives.h"
#include "runtime/activity.h"
#include "runtime/cards.h"
#include "runtime/dtypes.h"
#include "runtime/storage.h"
#include "runtime/stream.h"

namespace spyre::distributed {
namespace {

// Ranks whose calls contradict each other. All of them know, and the group stays usable.
struct Disagreement : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::exception_ptr as_error(const std::string& what) {
  try {
    C10_THROW_ERROR(DistBackendError, what);
  } catch (...) {
    return std::current_exception();
  }
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string list(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : " ") + std::to_string(number);
  return text;
}

struct Groups {
  std::mutex mutex;
  std::set<Group*> all;
};
Groups& groups() {
  static Groups* one = new Groups();  // threads may outlive statics
  return *one;
}

MakeGloo& gloo_maker() {
  static MakeGloo* one = new MakeGloo();
  return *one;
}

// What a sender tells a receiver before the data: enough to refuse it, and to take it all the same.
struct Announcement {
  int64_t dtype = 0;
  int64_t numel = 0;
};

constexpr int64_t kFailed = -1;  // as a number of elements: the sender has none to give

Bytes to_bytes(const Announcement& said) {
  Bytes bytes(sizeof(said));
  std::memcpy(bytes.data(), &said, sizeof(said));
  return bytes;
}

Announcement to_announcement(const Bytes& bytes) {
  Announcement said;
  std::memcpy(&said, bytes.data(), sizeof(said));
  return said;
}

// Inputs up to this size need no second message.
constexpr size_t kWithDeclaration = 4096;

// Gloo's tags for the announcement and for the data of a message.
int announcement_tag(int tag) { return 2 * tag; }
int data_tag(int tag) { return 2 * tag + 1; }

int64_t total_bytes(const std::vector<Part>& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, const Part& part) { return sum + part.bytes; });
}

Bytes read_all(const std::vector<Part>& parts) {
  Bytes bytes(static_cast<size_t>(total_bytes(parts)));
  std::byte* to = bytes.data();
  for (const Part& part : parts) {
    read_part(part, to);
    to += part.bytes;
  }
  return bytes;
}

void write_all(const std::vector<Part>& parts, const Bytes& bytes) {
  const std::byte* from = bytes.data();
  for (const Part& part : parts) {
    write_part(part, from);
    from += part.bytes;
  }
}

// Sends and receives have no number: only the calls of all ranks are counted.
std::string numbered(const Call& call) {
  const std::string name = name_of(call.what);
  return call.sequence == 0 ? name : name + " #" + std::to_string(call.sequence);
}

// What a call sends and gets over this card's link.
cost::LinkTraffic traffic_of(const Call& call, int rank) {
  using cost::Collective;
  const auto law = [&](int64_t bytes) {
    const auto ranks = static_cast<int>(call.send.size());
    return cost::link_traffic(call.what, bytes, ranks, call.root == rank);
  };
  const auto others = [&](const std::vector<int64_t>& elements) {
    return (std::accumulate(elements.begin(), elements.end(), int64_t{0}) - elements[rank]) *
           call.element_size();
  };
  switch (call.what) {
    case Collective::AllToAll:
    case Collective::Gather:
    case Collective::Scatter:  // every rank may have another length for every other
      return {others(call.send), others(call.receive)};
    case Collective::Send:
      return {total_bytes(call.inputs), 0};
    case Collective::Receive:
      return {0, total_bytes(call.outputs)};
    case Collective::AllGather:
      return law(total_bytes(call.outputs));
    case Collective::Broadcast:
      return law(std::max(total_bytes(call.inputs), total_bytes(call.outputs)));
    default:
      return law(total_bytes(call.inputs));
  }
}

}  // namespace

// A call on its way. If the card drops it, its work fails when the last reference goes.
struct Group::Operation {
  Call call;
  c10::DeviceIndex device = -1;
  int peer = -1;
  int tag = 0;
  std::string name;  // in profiles
  std::shared_ptr<Group> group;
  c10::intrusive_ptr<SpyreWork> work;
  Bytes inputs;

  // From now until it is complete the tensors stay where they are.
  void pin() {
    for (const std::vector<Part>* parts : {&call.inputs, &call.outputs}) {
      for (const Part& part : *parts) pins_.emplace_back(part.storage);
    }
  }

  // The card has come to it, and wants to be told when it is over.
  void begin(std::function<void()> finish) {
    {
      const std::lock_guard lock(mutex_);
      if (!is_complete_) std::swap(finish_, finish);
    }
    if (finish) finish();
  }

  // Both do nothing once it is complete: it was abandoned, and the tensors are somebody else's.
  void take_inputs() {
    const std::lock_guard lock(mutex_);
    if (is_complete_) return;
    try {
      inputs = read_all(call.inputs);
    } catch (const std::exception& error) {
      call.failure = error.what();
    }
  }
  void deliver(const Bytes& outputs) {
    const std::lock_guard lock(mutex_);
    if (!is_complete_) write_all(call.outputs, outputs);
  }

  // False if it was complete before.
  bool complete(std::exception_ptr error, bool is_news = true) {
    std::function<void()> finish;
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(is_complete_, true)) return false;
      pins_.clear();
      std::swap(finish_, finish);
    }
    if (finish) finish();
    work->complete(std::move(error), is_news);
    return true;
  }

  ~Operation() {
    {
      const std::lock_guard lock(group->mutex_);
      group->under_way_.erase(this);
    }
    complete(as_error(group->title(call) + " did not run: the card has a fault, which the next "
                                           "synchronising call tells"));
  }

 private:
  std::mutex mutex_;
  bool is_complete_ = false;
  std::vector<Pin> pins_;
  std::function<void()> finish_;
};

void set_make_gloo(MakeGloo make) { gloo_maker() = std::move(make); }

Group::Group(const c10::intrusive_ptr<c10d::Store>& store, int rank, std::string name,
             std::vector<int64_t> ranks, std::chrono::milliseconds timeout)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      timeout_(timeout),
      progress_(Progress::start(store, rank, ranks_)),
      transport_(connect(store, rank)) {
  const std::lock_guard lock(groups().mutex);
  groups().all.insert(this);
}

Group::~Group() {
  const std::lock_guard lock(groups().mutex);
  groups().all.erase(this);
}

std::string Group::members() const { return "group '" + name_ + "' (ranks " + list(ranks_) + ")"; }

std::string Group::title(const Call& call) const {
  return "spyreccl: " + numbered(call) + " of " + members() + " on rank " +
         std::to_string(ranks_[rank()]);
}

// Waits until every member has come to make the group.
c10::intrusive_ptr<c10d::Backend> Group::connect(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank) {
  const std::chrono::milliseconds timeout = timeout_;
  try {
    return gloo_maker()(c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank,
                        static_cast<int>(ranks_.size()), timeout);
  } catch (const std::exception& error) {
    const std::string reason = first_line(error.what());
    const std::string who = progress_->explain(0);
    progress_->failed("making the group: " + (who.empty() ? reason : who));
    C10_THROW_ERROR(DistBackendError, "spyreccl: " + members() + " could not be made on rank " +
                                          std::to_string(ranks_[rank]) +
                                          (who.empty() ? "" : ": " + who) + ". Time-out " +
                                          std::to_string(timeout.count()) +
                                          " ms; Gloo says: " + reason);
  }
}

// ---- On the caller's thread ---------------------------------------------------------------------

c10::DeviceIndex Group::device_for(const Call& call) {
  const Part* part = call.first();
  const std::lock_guard lock(mutex_);
  if (part == nullptr) {
    return device_ >= 0 ? device_ : current_device();
  }
  if (device_ < 0) {
    device_ = part->device;
  }
  TORCH_CHECK_VALUE(part->device == device_, "spyreccl: ", name_of(call.what), " of group '", name_,
                    "' got a tensor on spyre:", static_cast<int>(part->device),
                    ", but the group uses spyre:", static_cast<int>(device_),
                    " of this process: a rank has one card");
  return device_;
}

Courier& Group::courier_for(cost::Collective what, int peer, int tag) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Courier>& courier = couriers_[{what, peer, tag}];
  if (courier == nullptr) courier = std::make_shared<Courier>();
  return *courier;
}

c10::intrusive_ptr<SpyreWork> Group::collective(Call call) {
  if (call.what == cost::Collective::Barrier) {
    call.send.assign(size(), 0);
    call.receive.assign(size(), 0);
  }
  check_parts(call);
  if (call.reduction) {
    const Part& part = *call.first();
    const std::string why = why_not(*call.reduction, part.format, meaning_of(part.dtype));
    TORCH_CHECK_VALUE(why.empty(), "spyreccl: ", name_of(call.what), " of ", part.dtype, ": ", why);
  }
  return submit(std::move(call), -1, 0, *collectives_, &Group::run_collective);
}

c10::intrusive_ptr<SpyreWork> Group::point_to_point(Call call, int peer, int tag) {
  TORCH_CHECK_VALUE(peer >= -1 && peer < size() && peer != rank(), title(call), ": rank ", peer,
                    " is not another rank of the group, which has ", size());
  TORCH_CHECK_VALUE(tag >= 0 && tag < (1 << 30), title(call), ": tag ", tag,
                    " is not between 0 and 2^30");
  const bool is_send = call.what == cost::Collective::Send;
  Courier& courier = courier_for(call.what, peer, tag);
  return submit(std::move(call), peer, tag, courier,
                is_send ? &Group::run_send : &Group::run_receive);
}

Group::OperationPtr Group::make_operation(Call call, int peer, int tag) {
  const c10::DeviceIndex device = device_for(call);
  auto operation = std::make_shared<Operation>();
  operation->group = shared_from_this();
  operation->device = device;
  operation->peer = peer;
  operation->tag = tag;
  operation->name = std::string("spyreccl:") + name_of(call.what);
  if (call.timeout == c10d::kUnsetTimeout) call.timeout = timeout_;
  const bool is_collective = !call.send.empty();
  // Only what the others will hear of counts: a mistake that this rank sees alone has been thrown.
  if (is_collective) call.sequence = ++sequence_;
  const std::lock_guard lock(mutex_);
  if (queue_ < 0) queue_ = next_queue(operation->device, -1);
  operation->work =
      c10::make_intrusive<SpyreWork>(ranks_[rank()], call.type, operation->name.c_str(),
                                     call.results, call.sequence, operation->device, queue_);
  operation->call = std::move(call);
  operation->pin();
  under_way_.emplace(operation.get(), operation);
  return operation;
}

c10::intrusive_ptr<SpyreWork> Group::submit(Call call, int peer, int tag, Courier& courier,
                                            Body body) {
  const int64_t asked = host_now();
  const OperationPtr operation = make_operation(std::move(call), peer, tag);
  const Call& made = operation->call;
  for (const Part& part : made.outputs) note_write(part.storage);
  const cost::LinkTraffic traffic = traffic_of(made, rank());
  Driver& card = driver(operation->device);
  const Ticket after = card.record(current_queue(operation->device));
  auto begin = [operation, body,
                courier = courier.shared_from_this()](std::function<void()> finish) {
    operation->begin(std::move(finish));
    operation->take_inputs();
    try {
      courier->post([operation, body] { operation->group->run(*operation, body); });
    } catch (const std::exception& error) {
      operation->complete(as_error(operation->group->title(operation->call) + ": " + error.what()));
    }
  };
  const auto line = reinterpret_cast<uintptr_t>(&courier);  // which `begin` keeps alive
  const Ticket ticket = card.exchange({after, traffic.out, traffic.in, std::move(begin), line});
  operation->work->set_ticket(ticket);
  if (asked != 0) profile(*operation, traffic, asked, after, ticket);
  return operation->work;
}

void Group::profile(const Operation& operation, const cost::LinkTraffic& traffic, int64_t asked,
                    const Ticket& after, const Ticket& ticket) const {
  record_block(operation.device, queue_, after);
  Activity activity;
  activity.kind = Activity::Kind::Exchange;
  activity.asked = asked;
  activity.name = operation.name;
  activity.device = operation.device;
  activity.queue = queue_;
  activity.bytes_read = traffic.out;
  activity.bytes_written = traffic.in;
  activity.peers = operation.peer < 0 ? list(ranks_) : std::to_string(ranks_[operation.peer]);
  record_activity(std::move(activity), ticket);
}

// ---- On the thread of a courier -----------------------------------------------------------------

void Group::run(Operation& operation, Body body) {
  std::string broken;
  {
    const std::lock_guard lock(mutex_);
    broken = broken_;
  }
  const Call& call = operation.call;
  if (!broken.empty()) {
    operation.complete(as_error(title(call) + " can't run: the group failed before. " + broken),
                       false);
    return;
  }
  try {
    operation.deliver((this->*body)(operation));
    const BeforeTheEnd still;
    operation.complete(nullptr);
  } catch (const Disagreement& error) {
    const std::string why = call.failure.empty() ? error.what() : call.failure;
    operation.complete(as_error(title(call) + ": " + why));
  } catch (const std::exception& error) {
    operation.complete(as_error(explained(call, operation.peer, error.what())));
  }
}

std::string Group::explained(const Call& call, int peer, const std::string& why) {
  const std::string who = progress_->explain(peer < 0 ? call.sequence : 0);
  std::string what = title(call) + " failed";
  if (peer >= 0) what += ", peer rank " + std::to_string(ranks_[peer]);
  what += who.empty() ? "" : ": " + who;
  const std::string reason = first_line(why);
  progress_->failed(numbered(call) + ": " + (who.empty() ? reason : who));
  what += ". Time-out " + std::to_string(call.timeout.count()) + " ms; Gloo says: " + reason;
  const std::lock_guard lock(mutex_);
  if (broken_.empty()) broken_ = what;
  return what;
}

// Small inputs travel with the declaration: then one round is all there is.
Bytes Group::run_collective(Operation& operation) {
  const Call& call = operation.call;
  const Deadline deadline(call.timeout);
  progress_->arrived(call.sequence, name_of(call.what));
  const std::vector<int64_t> own = declaration(call);
  const size_t head = own.size() * sizeof(int64_t);
  Bytes message(head + kWithDeclaration);
  std::memcpy(message.data(), own.data(), head);
  const Bytes& inputs = operation.inputs;
  std::copy_n(inputs.begin(), std::min(inputs.size(), kWithDeclaration), message.begin() + head);
  const size_t stride = message.size();
  const Bytes all = transport_.all_gather(std::move(message), deadline);

  std::vector<std::vector<int64_t>> words;
  std::vector<std::span<const std::byte>> of_rank;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::byte* from = all.data() + rank * stride;
    words.emplace_back(own.size());
    std::memcpy(words.back().data(), from, head);
    of_rank.emplace_back(from + head, kWithDeclaration);
  }
  const Declarations said(std::move(words));
  if (const std::string why = said.disagreement(ranks_); !why.empty()) throw Disagreement(why);
  const int64_t largest = said.largest_input() * call.element_size();
  if (largest == 0) return {};
  if (largest <= static_cast<int64_t>(kWithDeclaration)) {
    return call.outputs.empty() ? Bytes() : combine_bytes(call, said, of_rank, rank());
  }
  return exchange_bytes(call, std::move(operation.inputs), transport_, deadline);
}

Bytes Group::run_send(Operation& operation) {
  const Call& call = operation.call;
  const Deadline deadline(call.timeout);
  const Part& part = call.inputs[0];
  const bool has_failed = !call.failure.empty();
  const Announcement said{static_cast<int64_t>(part.dtype), has_failed ? kFailed : part.numel};
  transport_.send(to_bytes(said), operation.peer, announcement_tag(operation.tag), deadline);
  if (has_failed) throw Disagreement(call.failure);
  if (!operation.inputs.empty()) {
    transport_.send(std::move(operation.inputs), operation.peer, data_tag(operation.tag), deadline);
  }
  return {};
}

Bytes Group::run_receive(Operation& operation) {
  const Call& call = operation.call;
  const Deadline deadline(call.timeout);
  const Part& into = call.outputs[0];
  const int tag = announcement_tag(operation.tag);
  constexpr size_t kBytes = sizeof(Announcement);
  const auto [bytes, from] =
      operation.peer < 0
          ? transport_.receive_from_any(kBytes, tag, deadline)
          : std::pair(transport_.receive(kBytes, operation.peer, tag, deadline), operation.peer);
  const Announcement said = to_announcement(bytes);
  operation.work->set_source(from);
  if (said.numel == kFailed) {
    throw Disagreement("rank " + std::to_string(ranks_[from]) +
                       " could not read what it sends; it says why");
  }
  const auto dtype = static_cast<c10::ScalarType>(said.dtype);
  const auto size = static_cast<size_t>(said.numel * element_bytes(device_format(dtype)));
  Bytes data;
  if (size != 0) data = transport_.receive(size, from, data_tag(operation.tag), deadline);
  if (said.numel != into.numel || dtype != into.dtype) {
    throw Disagreement("rank " + std::to_string(ranks_[from]) + " sent " +
                       std::to_string(said.numel) + " elements of " + c10::toString(dtype) +
                       ", this rank expects " + std::to_string(into.numel) + " of " +
                       c10::toString(into.dtype));
  }
  return data;
}

// ---- The end ------------------------------------------------------------------------------------

bool Group::is_broken() {
  const std::lock_guard lock(mutex_);
  return !broken_.empty();
}

void Group::abandon(const std::string& why, bool is_end_of_process) {
  std::vector<OperationPtr> operations;
  {
    const std::lock_guard lock(mutex_);
    if (broken_.empty()) broken_ = why;
    for (const auto& [_, weak] : under_way_) {
      if (auto operation = weak.lock()) operations.push_back(std::move(operation));
    }
  }
  bool is_news = true;  // of the first one: the others end for the same reason
  for (const OperationPtr& operation : operations) {
    if (operation->complete(as_error(title(operation->call) + ": " + why), is_news)) {
      is_news = false;
    }
    if (is_end_of_process) operation->work->tell_error();  // its courier may never let go of it
  }
}

void abandon_all(const std::string& why) {
  std::vector<std::shared_ptr<Group>> all;
  {
    const std::lock_guard lock(groups().mutex);
    for (Group* group : groups().all) {
      if (auto alive = group->weak_from_this().lock()) all.push_back(std::move(alive));
    }
  }
  for (const auto& group : all) group->abandon(why, true);
}

}  // namespace spyre::distributed
