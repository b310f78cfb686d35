#include "distributed/backend.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "runtime/python_lock.h"

namespace spyre::distributed {
namespace {

using c10d::OpType;
using cost::Collective;
using Tensors = std::vector<at::Tensor>;
using Lengths = std::vector<int64_t>;

constexpr const char* kName = "spyreccl";

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return Reduction::Sum;
    case c10d::ReduceOp::AVG:
      return Reduction::Average;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::Product;
    case c10d::ReduceOp::MIN:
      return Reduction::Min;
    case c10d::ReduceOp::MAX:
      return Reduction::Max;
    case c10d::ReduceOp::BAND:
      return Reduction::And;
    case c10d::ReduceOp::BOR:
      return Reduction::Or;
    case c10d::ReduceOp::BXOR:
      return Reduction::Xor;
    default:
      TORCH_CHECK_VALUE(false, "spyreccl reduces with SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and ",
                        "BXOR; for PREMUL_SUM multiply the tensor first");
  }
}

std::vector<Part> parts_of(const Tensors& tensors, Role role) {
  std::vector<Part> parts;
  parts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) parts.push_back(make_part(tensor, role));
  return parts;
}

int64_t elements(const std::vector<Part>& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, const Part& part) { return sum + part.numel; });
}

// One tensor per rank.
Lengths lengths_by_rank(const char* what, const std::vector<Part>& parts, int ranks) {
  TORCH_CHECK_VALUE(static_cast<int>(parts.size()) == ranks, what,
                    " needs a tensor for each of the ", ranks, " ranks, got ", parts.size());
  Lengths lengths;
  for (const Part& part : parts) lengths.push_back(part.numel);
  return lengths;
}

const Tensors& only_list(const char* what, const std::vector<Tensors>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, what, " takes one list of tensors, got ", lists.size());
  return lists[0];
}

const at::Tensor& only_tensor(const char* what, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, what, " takes one tensor, got ", tensors.size());
  return tensors[0];
}

// Lengths of `splits` along the first dimension; none: equal ones.
Lengths split_lengths(const at::Tensor& tensor, const Lengths& splits, int ranks) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % ranks == 0, "all_to_all_single: the first dimension, ", rows,
                      ", can't be divided among ", ranks, " ranks; give split sizes");
    return Lengths(ranks, tensor.numel() / ranks);
  }
  TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == ranks &&
                        std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows &&
                        std::all_of(splits.begin(), splits.end(), [](int64_t n) { return n >= 0; }),
                    "all_to_all_single: the split sizes ", c10::IntArrayRef(splits),
                    " must be one per rank (", ranks, ") and add up to the first dimension, ",
                    rows);
  Lengths lengths;
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  for (const int64_t split : splits) lengths.push_back(split * row);
  return lengths;
}

int root_of(Collective what, int64_t root, int ranks) {
  TORCH_CHECK_VALUE(root >= 0 && root < ranks, name_of(what), ": rank ", root,
                    " is not in the group, which has ranks 0 to ", ranks - 1);
  return static_cast<int>(root);
}

Call make_call(Collective what, OpType type, std::chrono::milliseconds timeout) {
  Call call;
  call.what = what;
  call.type = type;
  call.timeout = timeout;
  return call;
}

}  // namespace

SpyreBackend::SpyreBackend(std::shared_ptr<Group> group)
    : Backend(group->rank(), group->size()), group_(std::move(group)) {
  init();
}

SpyreBackend::~SpyreBackend() {
  const WithoutPythonLock unlocked;
  group_->abandon("the process group was destroyed");
}

const std::string SpyreBackend::getBackendName() const { return kName; }

c10::intrusive_ptr<c10d::Backend::Options> SpyreBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(kName, group_->timeout());
}

c10d::ErrorType SpyreBackend::getError() {
  return group_->is_broken() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

// Called by all ranks; those that are not in `ranks` get nothing.
c10::intrusive_ptr<c10d::Backend> SpyreBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return nullptr;
  std::vector<int64_t> names;
  for (const int rank : ranks) names.push_back(group_->ranks().at(rank));
  auto part = std::make_shared<Group>(store, static_cast<int>(own - ranks.begin()),
                                      options->group_name, std::move(names), options->timeout);
  return c10::make_intrusive<SpyreBackend>(std::move(part));
}

void SpyreBackend::abort() { group_->abandon("the process group was aborted"); }
void SpyreBackend::shutdown() { group_->abandon("the process group was destroyed"); }

// ---- Several as one -----------------------------------------------------------------------------

void SpyreBackend::startCoalescing() { coalescing_.emplace(); }

SpyreBackend::WorkPtr SpyreBackend::endCoalescing() {
  std::vector<WorkPtr> works =
      std::exchange(coalescing_, std::nullopt).value_or(std::vector<WorkPtr>{});
  return c10::make_intrusive<JoinedWork>(std::move(works));
}

SpyreBackend::WorkPtr SpyreBackend::noted(WorkPtr work) {
  if (coalescing_) coalescing_->push_back(work);
  return work;
}

SpyreBackend::WorkPtr SpyreBackend::joined(std::vector<WorkPtr> works) {
  if (works.size() == 1) return works.front();
  return c10::make_intrusive<JoinedWork>(std::move(works));
}

SpyreBackend::WorkPtr SpyreBackend::collective(Call call) {
  return noted(group_->collective(std::move(call)));
}

// ---- Collectives --------------------------------------------------------------------------------

SpyreBackend::WorkPtr SpyreBackend::broadcast(Tensors& tensors,
                                              const c10d::BroadcastOptions& options) {
  Call call = make_call(Collective::Broadcast, OpType::BROADCAST, options.timeout);
  call.root = root_of(call.what, options.rootRank, getSize());
  const bool is_root = call.root == getRank();
  (is_root ? call.inputs : call.outputs) = parts_of(tensors, is_root ? Role::Input : Role::Output);
  const int64_t length = elements(is_root ? call.inputs : call.outputs);
  call.send.assign(getSize(), is_root ? length : 0);
  call.receive.assign(getSize(), 0);
  call.receive[call.root] = length;
  call.results = tensors;
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::allreduce(Tensors& tensors,
                                              const c10d::AllreduceOptions& options) {
  Call call = make_call(Collective::AllReduce, OpType::ALLREDUCE, options.timeout);
  call.reduction = reduction_of(options.reduceOp);
  call.inputs = parts_of(tensors, Role::Input);
  call.outputs = parts_of(tensors, Role::Output);
  call.send.assign(getSize(), elements(call.inputs));
  call.receive = call.send;
  call.results = tensors;
  return collective(std::move(call));
}

// One exchange for all tensors of a dtype.
SpyreBackend::WorkPtr SpyreBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  std::map<c10::ScalarType, Tensors> by_dtype;
  for (const at::Tensor& tensor : tensors) by_dtype[tensor.scalar_type()].push_back(tensor);
  std::vector<WorkPtr> works;
  for (auto& [_, alike] : by_dtype) works.push_back(allreduce(alike, options));
  return joined(std::move(works));
}

SpyreBackend::WorkPtr SpyreBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Call call = make_call(Collective::Reduce, OpType::REDUCE, options.timeout);
  call.reduction = reduction_of(options.reduceOp);
  call.root = root_of(call.what, options.rootRank, getSize());
  const bool is_root = call.root == getRank();
  call.inputs = parts_of(tensors, Role::Input);
  if (is_root) call.outputs = parts_of(tensors, Role::Output);
  const int64_t length = elements(call.inputs);
  call.send.assign(getSize(), 0);
  call.send[call.root] = length;
  call.receive.assign(getSize(), is_root ? length : 0);
  call.results = tensors;
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  Call call = make_call(Collective::AllGather, OpType::ALLGATHER, options.timeout);
  call.inputs = parts_of({only_tensor("all_gather", inputs)}, Role::Input);
  call.results = only_list("all_gather", outputs);
  call.outputs = parts_of(call.results, Role::Output);
  call.send.assign(getSize(), call.inputs[0].numel);
  call.receive = lengths_by_rank("all_gather", call.outputs, getSize());
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  Call call = make_call(Collective::AllGather, OpType::_ALLGATHER_BASE, options.timeout);
  call.inputs = parts_of({input}, Role::Input);
  call.outputs = parts_of({output}, Role::Output);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(),
                    "all_gather_into_tensor: the output has ", output.numel(),
                    " elements, it needs ", getSize(), " times the input's ", input.numel());
  call.send.assign(getSize(), input.numel());
  call.receive = call.send;
  call.results = {output};
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TensorLists list(1);
    for (const Tensors& of_rank : outputs) {
      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "all_gather_coalesced: ", of_rank.size(),
                        " outputs of a rank for ", inputs.size(), " inputs");
      list[0].push_back(of_rank[i]);
    }
    Tensors input{inputs[i]};
    works.push_back(allgather(list, input, options));
  }
  return joined(std::move(works));
}

SpyreBackend::WorkPtr SpyreBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "all_gather_into_tensor: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs[i], inputs[i], options));
  }
  return joined(std::move(works));
}

SpyreBackend::WorkPtr SpyreBackend::gather(TensorLists& outputs, Tensors& inputs,
                                           const c10d::GatherOptions& options) {
  Call call = make_call(Collective::Gather, OpType::GATHER, options.timeout);
  call.root = root_of(call.what, options.rootRank, getSize());
  call.inputs = parts_of({only_tensor("gather", inputs)}, Role::Input);
  call.send.assign(getSize(), 0);
  call.send[call.root] = call.inputs[0].numel;
  call.receive.assign(getSize(), 0);
  if (call.root == getRank()) {
    call.results = only_list("gather", outputs);
    call.outputs = parts_of(call.results, Role::Output);
    call.receive = lengths_by_rank("gather", call.outputs, getSize());
  }
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                            const c10d::ScatterOptions& options) {
  Call call = make_call(Collective::Scatter, OpType::SCATTER, options.timeout);
  call.root = root_of(call.what, options.rootRank, getSize());
  call.outputs = parts_of({only_tensor("scatter", outputs)}, Role::Output);
  call.receive.assign(getSize(), 0);
  call.receive[call.root] = call.outputs[0].numel;
  call.send.assign(getSize(), 0);
  if (call.root == getRank()) {
    call.inputs = parts_of(only_list("scatter", inputs), Role::Input);
    call.send = lengths_by_rank("scatter", call.inputs, getSize());
  }
  call.results = outputs;
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  Call call = make_call(Collective::ReduceScatter, OpType::REDUCE_SCATTER, options.timeout);
  call.reduction = reduction_of(options.reduceOp);
  call.outputs = parts_of({only_tensor("reduce_scatter", outputs)}, Role::Output);
  call.inputs = parts_of(only_list("reduce_scatter", inputs), Role::Input);
  call.send = lengths_by_rank("reduce_scatter", call.inputs, getSize());
  call.receive.assign(getSize(), call.outputs[0].numel);
  call.results = outputs;
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(),
                    "reduce_scatter_tensor: the input has ", input.numel(), " elements, it needs ",
                    getSize(), " times the output's ", output.numel());
  Call call = make_call(Collective::ReduceScatter, OpType::_REDUCE_SCATTER_BASE, options.timeout);
  call.reduction = reduction_of(options.reduceOp);
  call.outputs = parts_of({output}, Role::Output);
  call.inputs = parts_of({input}, Role::Input);
  call.send.assign(getSize(), output.numel());
  call.receive = call.send;
  call.results = {output};
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "reduce_scatter_tensor: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  }
  return joined(std::move(works));
}

SpyreBackend::WorkPtr SpyreBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                  std::vector<int64_t>& output_splits,
                                                  std::vector<int64_t>& input_splits,
                                                  const c10d::AllToAllOptions& options) {
  Call call = make_call(Collective::AllToAll, OpType::ALLTOALL_BASE, options.timeout);
  call.inputs = parts_of({input}, Role::Input);
  call.outputs = parts_of({output}, Role::Output);
  call.send = split_lengths(input, input_splits, getSize());
  call.receive = split_lengths(output, output_splits, getSize());
  call.results = {output};
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllToAllOptions& options) {
  Call call = make_call(Collective::AllToAll, OpType::ALLTOALL, options.timeout);
  call.inputs = parts_of(inputs, Role::Input);
  call.outputs = parts_of(outputs, Role::Output);
  call.send = lengths_by_rank("all_to_all", call.inputs, getSize());
  call.receive = lengths_by_rank("all_to_all", call.outputs, getSize());
  call.results = outputs;
  return collective(std::move(call));
}

SpyreBackend::WorkPtr SpyreBackend::barrier(const c10d::BarrierOptions& options) {
  return collective(make_call(Collective::Barrier, OpType::BARRIER, options.timeout));
}

// ---- From one to another ------------------------------------------------------------------------

SpyreBackend::WorkPtr SpyreBackend::point_to_point(Collective what, OpType type, Tensors& tensors,
                                                   int peer, int tag) {
  Call call = make_call(what, type, c10d::kUnsetTimeout);
  const bool is_send = what == Collective::Send;
  const char* const name = name_of(what);
  only_tensor(name, tensors);
  (is_send ? call.inputs : call.outputs) = parts_of(tensors, is_send ? Role::Input : Role::Output);
  call.results = is_send ? Tensors{} : tensors;
  return noted(group_->point_to_point(std::move(call), peer, tag));
}

SpyreBackend::WorkPtr SpyreBackend::send(Tensors& tensors, int to, int tag) {
  TORCH_CHECK_VALUE(to >= 0, "send: there is no rank ", to);
  return point_to_point(Collective::Send, OpType::SEND, tensors, to, tag);
}
SpyreBackend::WorkPtr SpyreBackend::recv(Tensors& tensors, int from, int tag) {
  TORCH_CHECK_VALUE(from >= 0, "recv: there is no rank ", from);
  return point_to_point(Collective::Receive, OpType::RECV, tensors, from, tag);
}
SpyreBackend::WorkPtr SpyreBackend::recvAnysource(Tensors& tensors, int tag) {
  return point_to_point(Collective::Receive, OpType::RECVANYSOURCE, tensors, -1, tag);
}

}  // namespace spyre::distributed
