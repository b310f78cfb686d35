#include "checker.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "checked_step.h"
#include "step.h"
#include "walk.h"

namespace spyre {
namespace {

constexpr int64_t kLxTotal = kCores * kLxBytes;

// Numbers for the buffers that the operands of a program name.
void number_buffers(CheckedLaunch& launch) {
  const Program& program = launch.machine.program;
  launch.buffers.resize(1);
  launch.buffer_of.assign(program.operands.size(), 0);
  std::map<std::tuple<Space, uint32_t, std::string>, uint32_t> numbers;
  const size_t named = std::min(program.steps.size(), launch.names.steps.size());
  for (size_t step = 0; step < named; ++step) {
    const std::vector<std::string>& buffers = launch.names.steps[step].buffers;
    const uint32_t first = program.steps[step].first_operand;
    const size_t operands = operands_of(program, program.steps[step]).size();
    for (size_t i = 0; i < std::min(buffers.size(), operands); ++i) {
      const OperandRecord& operand = program.operands[first + i];
      if (buffers[i].empty() || !is_in_memory(operand)) continue;
      const uint32_t symbol = is_device(operand) ? operand.symbol : 0;
      const Space space = is_device(operand) ? Space::Device : Space::Lx;
      const auto [found, is_new] = numbers.try_emplace(
          {space, symbol, buffers[i]}, static_cast<uint32_t>(launch.buffers.size()));
      if (is_new) launch.buffers.push_back({space, symbol, buffers[i]});
      launch.buffer_of[first + i] = found->second;
    }
  }
}

// Walks the loop tree, one step after the other.
class CheckedRun {
 public:
  CheckedRun(CheckedLaunch& launch, ThreadPool& pool, const std::atomic<bool>& is_cancelled)
      : launch_(launch), pool_(pool), is_cancelled_(is_cancelled) {}

  void run_nodes(size_t begin, size_t end) {
    const Program& program = launch_.machine.program;
    for (size_t node = begin; node < end; ++node) {
      const NodeRecord& record = program.nodes[node];
      if (record.kind == static_cast<uint32_t>(NodeKind::Step)) {
        run_step(record.step);
        continue;
      }
      const size_t depth = depth_++;
      for (uint32_t i = 0; i < record.count; ++i) {
        loops_[depth] = i;
        run_nodes(node + 1, node + 1 + record.size);
      }
      depth_ = depth;
      node += record.size;
    }
  }

 private:
  void run_step(uint32_t step) {
    if (is_cancelled_.load(std::memory_order_relaxed)) {
      throw CardFault(CardFault::Kind::Internal, "the kernel was stopped by a reset of the card");
    }
    const StepRecord& record = launch_.machine.program.steps[step];
    ++launch_.run;
    launch_.step_of.push_back(step);
    const bool waits = (record.flags & kBarrierBefore) != 0 || is_relayout(record);
    if (waits) launch_.barrier = launch_.run;

    std::vector<int> cores;
    std::vector<CoreStep> bound;
    for (int core = 0; core < kCores; ++core) {
      if (!has_core(record.cores, core)) continue;
      CoreStep own = bind_step(launch_.machine, step, core, {loops_.data(), depth_});
      if (own.iterations() == 0) continue;
      const std::vector<CoreStep> parts =
          is_relayout(record) ? relayout_parts(launch_.machine, own) : std::vector{own};
      cores.insert(cores.end(), parts.size(), core);
      bound.insert(bound.end(), parts.begin(), parts.end());
    }
    std::vector<CheckedStep> checks;
    checks.reserve(bound.size());
    const auto partners = static_cast<size_t>(partners_of(record));
    const bool has_rings = accumulates_in_rings(record);
    std::vector<CheckedStep::Results> rings(has_rings ? bound.size() / partners : 0);
    for (size_t i = 0; i < bound.size(); ++i) {
      CheckedStep& check = checks.emplace_back(launch_, step, cores[i], bound[i]);
      if (has_rings) {
        const bool stores = static_cast<int>(i % partners) < storing_partners(bound);
        check.join_ring(rings[i / partners], stores);
      }
      check.before();
    }
    if (has_rings) {
      for (CheckedStep& check : checks) check.before_results();
    }
    compute(record, bound);
    if (launch_.mode == CheckMode::NonFinite) {
      for (CheckedStep& check : checks) check.after();
    }
    if (is_relayout(record)) launch_.barrier = launch_.run + 1;
  }

  void compute(const StepRecord& record, std::span<const CoreStep> bound) {
    if (bound.empty()) return;
    if (is_kind(record, StepKind::Matmul)) {
      run_matmul(bound, &pool_);
      return;
    }
    if (accumulates_in_rings(record)) {
      run_ring_reduction(bound, &pool_);
      return;
    }
    const RunStep run = fast_steps()[record.kind];
    for (const CoreStep& core : bound) run(core);
  }

  CheckedLaunch& launch_;
  ThreadPool& pool_;
  const std::atomic<bool>& is_cancelled_;
  std::array<uint32_t, kLoopDepth> loops_{};
  size_t depth_ = 0;
};

}  // namespace

Checker::Checker(CheckMode mode, int64_t memory_bytes, ThreadPool& pool)
    : mode_(mode), pool_(pool), device_(memory_bytes) {}

Checker::~Checker() = default;

void Checker::allocated(Address address, int64_t bytes) { device_.forget(address, bytes); }

void Checker::copied_to_card(Address to, const DmaDescriptor& how, const std::byte* device) {
  mark_transfer(device_, to, how, mode_ == CheckMode::NonFinite ? device : nullptr);
}

void Checker::check_copy_to_host(Address from, const DmaDescriptor& how,
                                 const std::string& where) const {
  if (how.allows_undefined) return;
  const auto bad = find_undefined(device_, from, how);
  if (!bad) return;
  const auto offset = bad->address - from;
  const std::string text = where + "check failed in a copy to the host\n  found an element " +
                           describe(bad->state) + "\n  in    the tensor at address " +
                           std::to_string(from) + ": bytes [" + std::to_string(offset) + ", " +
                           std::to_string(offset + element_bytes(how.device_format)) + ")" +
                           "\n  try   write the tensor before it is read (torch.empty does not)";
  throw CardFault(CardFault::Kind::CheckFailed, text);
}

void Checker::run(const Program& program, const ProgramNames& names,
                  std::span<const Binding> bindings, std::byte* device, const std::string& where,
                  Touched& touched) {
  if (lx_shadow_ == nullptr) {
    lx_shadow_ = std::make_unique<Shadow>(kLxTotal);
    lx_.reset(static_cast<std::byte*>(std::aligned_alloc(kStickBytes, kLxTotal)));
    if (lx_ == nullptr) throw std::bad_alloc();
  }
  for (int core = 0; core < kCores; ++core) {
    lx_shadow_->forget(core * kLxBytes, program.lx_high_water[core]);
  }
  const Machine machine{program, bindings, device, lx_.get()};
  CheckedLaunch launch{machine, names, where, device_, *lx_shadow_, mode_, touched};
  launch.start = launch.barrier = runs_ + 1;
  launch.run = runs_;
  number_buffers(launch);
  // Counted even if the launch fails: its sticks carry these numbers.
  struct Count {
    uint32_t& runs;
    const CheckedLaunch& launch;
    ~Count() { runs = launch.run; }
  } const count{runs_, launch};
  CheckedRun(launch, pool_, is_cancelled_).run_nodes(0, program.nodes.size());
}

}  // namespace spyre
