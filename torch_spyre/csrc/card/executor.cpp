#include "executor.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

#include "chain.h"
#include "slices.h"
#include "walk.h"

namespace spyre {
namespace {

constexpr int64_t kLxTotal = kCores * kLxBytes;
// Work below this is done before other threads have woken up.
constexpr int64_t kParallelElements = 64 * 1024;
// Below this everything stays in a host core's cache anyway.
constexpr int64_t kSlicedElements = 1024 * 1024;
// Of a tensor of this size, little would be left in the host's caches when it is read.
constexpr int64_t kStreamedBytes = 16 * 1024 * 1024;
// Steps that are tried together: that takes the square of their number.
constexpr size_t kMaxSliced = 16;

// The indices of the loops around a node, outermost first.
struct Loops {
  std::array<uint32_t, kLoopDepth> index{};
  size_t depth = 0;
  std::span<const uint32_t> span() const { return {index.data(), depth}; }
};

// One launch. Nodes between barriers form a *segment*: a host thread carries a core through all of
// it, while the core's scratchpad is warm. Some steps are *joint*, they run for all their cores at
// once: a Matmul whose second operand is in device memory, for the cores may share what they
// unpack, a step whose cores form rings, and one in which they read each other's scratchpads. They
// stand between segments: every core has done all earlier steps when one begins, and begins the
// later ones when it has ended. Loops with a barrier or a joint step inside are walked by the
// launching thread.
//
// A program that is one segment leaves nothing in a scratchpad for later, so each thread needs just
// one, which stays in its cache from core to core.
class Launch {
 public:
  Launch(const Machine& machine, ThreadPool& pool, const StepTable& steps,
         const std::atomic<bool>& is_cancelled)
      : machine_(machine),
        program_(machine.program),
        pool_(pool),
        steps_(steps),
        is_cancelled_(is_cancelled),
        is_parallel_(pool.threads() > 1 && program_.work >= kParallelElements),
        may_slice_(program_.work >= kSlicedElements && has_reduction(program_)),
        ends_segment_(program_.nodes.size()),
        is_one_segment_(!mark_ends(0, program_.nodes.size())) {}

  void run() {
    Loops loops;
    run_nodes(0, program_.nodes.size(), loops);
  }

 private:
  bool is_step(size_t node) const {
    return program_.nodes[node].kind == static_cast<uint32_t>(NodeKind::Step);
  }
  size_t after(size_t node) const {
    return node + 1 + (is_step(node) ? 0 : program_.nodes[node].size);
  }

  const StepRecord& step_of(size_t node) const { return program_.steps[program_.nodes[node].step]; }

  // Where the chain ends that begins with the step of this node: after the node itself, if nothing
  // is chained to it.
  size_t chain_end(size_t node, size_t end) const {
    do {
      ++node;
    } while (node < end && is_step(node) && (step_of(node).flags & kChained) != 0);
    return node;
  }

  bool is_matmul(size_t node) const {
    return is_step(node) && is_kind(step_of(node), StepKind::Matmul);
  }
  // Does it run for all cores at once?
  bool is_joint(size_t node) const {
    if (!is_step(node)) return false;
    return step_of(node).ring != 0 ||
           (is_matmul(node) && is_device(operands_of(program_, step_of(node))[1]));
  }

  // Which nodes can't be part of the segment before them; returns whether [begin, end) has any.
  bool mark_ends(size_t begin, size_t end) {
    bool has_any = false;
    for (size_t node = begin; node < end; node = after(node)) {
      bool ends = program_.barrier[node] != 0 || is_joint(node);
      if (!is_step(node)) ends |= mark_ends(node + 1, after(node));
      ends_segment_[node] = ends ? 1 : 0;
      has_any |= ends;
    }
    return has_any;
  }

  void stop_if_cancelled() const {
    if (is_cancelled_.load(std::memory_order_relaxed)) {
      throw CardFault(CardFault::Kind::Internal, "the kernel was stopped by a reset of the card");
    }
  }

  // Calls `body` once per iteration of a loop, with `loops` set.
  template <typename Body>
  void iterate(size_t node, Loops& loops, Body body) const {
    const size_t depth = loops.depth++;
    for (uint32_t i = 0; i < program_.nodes[node].count; ++i) {
      loops.index[depth] = i;
      stop_if_cancelled();
      body();
    }
    loops.depth = depth;
  }

  void run_nodes(size_t begin, size_t end, Loops& loops) {
    size_t segment = begin;
    for (size_t node = begin; node < end; node = after(node)) {
      if (ends_segment_[node] == 0) continue;
      run_segment(segment, node, loops);
      segment = node;
      if (is_joint(node)) {
        run_joint_step(program_.nodes[node].step, loops);
        segment = after(node);
      } else if (!is_step(node)) {
        iterate(node, loops, [&] { run_nodes(node + 1, after(node), loops); });
        segment = after(node);
      }
    }
    run_segment(segment, end, loops);
  }

  void run_joint_step(uint32_t step, const Loops& loops) {
    stop_if_cancelled();
    std::vector<CoreStep> cores;
    int64_t elements = 0;
    for (int core = 0; core < kCores; ++core) {
      if (!has_core(program_.steps[step].cores, core)) continue;
      const CoreStep bound = bind_step(machine_, step, core, loops.span());
      if (bound.iterations() == 0) continue;
      elements += bound.iterations() * bound.lanes;
      cores.push_back(bound);
    }
    ThreadPool* const pool = is_parallel_ && elements >= kParallelElements ? &pool_ : nullptr;
    if (is_kind(program_.steps[step], StepKind::Matmul)) {
      run_matmul(cores, pool);
    } else if (is_relayout(program_.steps[step])) {
      run_relayout(cores, pool);
    } else {
      run_ring_reduction(cores, pool);
    }
  }

  void run_relayout(std::span<const CoreStep> cores, ThreadPool* pool) const {
    const auto run_core = [&](int i) {
      for (const CoreStep& part : relayout_parts(machine_, cores[i])) run_unit({part});
    };
    const int count = static_cast<int>(cores.size());
    if (pool != nullptr) {
      pool->run(count, run_core);
    } else {
      for (int i = 0; i < count; ++i) run_core(i);
    }
  }

  void run_segment(size_t begin, size_t end, Loops& loops) {
    if (begin == end) return;
    uint32_t mask = 0;
    for (size_t node = begin; node < end; ++node) {
      if (is_step(node)) mask |= step_of(node).cores;
    }
    std::vector<int> cores;
    for (int core = 0; core < kCores; ++core) {
      if (has_core(mask, core)) cores.push_back(core);
    }
    const int count = static_cast<int>(cores.size());
    if (is_parallel_ && count < 2 * pool_.threads()) {
      run_sliced(begin, end, loops);
    } else {
      run_cores(begin, end, cores, loops);
    }
  }

  void run_cores(size_t begin, size_t end, const std::vector<int>& cores, const Loops& loops) {
    const int count = static_cast<int>(cores.size());
    const int workers = is_parallel_ ? std::min(pool_.threads(), count) : 1;
    Shares shares(count, workers);
    std::vector<std::exception_ptr> failures(cores.size());
    const auto work = [&](int worker) {
      Machine machine = machine_;
      if (is_one_segment_) {
        machine.lx += worker * kLxBytes;
        machine.lx_stride = 0;
      }
      for (int i; (i = shares.take(worker)) < count;) {
        Loops own = loops;
        try {
          run_core(machine, begin, end, cores[i], own);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      }
    };
    if (is_parallel_) {
      pool_.run(workers, work);
    } else {
      work(0);
    }
    // The first core's, whichever thread was the first.
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

  void run_core(const Machine& machine, size_t begin, size_t end, int core, Loops& loops) const {
    for (size_t node = begin, next = begin; node < end; node = next) {
      if (!is_step(node)) {
        next = after(node);
        iterate(node, loops, [&] { run_core(machine, node + 1, next, core, loops); });
        continue;
      }
      next = may_slice_ ? run_slices(machine, node, end, core, loops) : node;
      if (next > node) continue;
      next = chain_end(node, end);
      if (!has_core(step_of(node).cores, core)) continue;
      stop_if_cancelled();
      const Unit unit = bind_unit(machine, node, next, core, loops);
      if (unit[0].iterations() != 0) run_unit(unit);
    }
  }

  void run_unit(const Unit& unit) const {
    if (unit.size() > 1) {
      run_chain(unit);
    } else if (is_kind(*unit[0].record, StepKind::Matmul)) {
      run_matmul(unit, nullptr);
    } else {
      steps_[unit[0].record->kind](unit[0]);
    }
  }

  // Steps from this one on that run together; returns the node after them.
  size_t run_slices(const Machine& machine, size_t begin, size_t end, int core,
                    const Loops& loops) const {
    std::vector<Unit> units;
    std::vector<size_t> ends;
    for (size_t node = begin; node < end && units.size() < kMaxSliced;) {
      if (!is_step(node) || !may_be_cut(step_of(node))) break;
      const size_t next = chain_end(node, end);
      if (has_core(step_of(node).cores, core)) {
        Unit unit = bind_unit(machine, node, next, core, loops);
        if (unit[0].iterations() != 0) {
          units.push_back(std::move(unit));
          ends.push_back(next);
        }
      }
      node = next;
    }
    if (units.size() < 2) return begin;
    const size_t ran = run_in_slices(units, [this](const Unit& unit) {
      stop_if_cancelled();
      run_unit(unit);
    });
    return ran == 0 ? begin : ends[ran - 1];
  }

  static bool may_be_cut(const StepRecord& step) {
    return is_kind(step, StepKind::Pointwise) || is_kind(step, StepKind::Reduction);
  }
  static bool has_reduction(const Program& program) {
    return std::any_of(program.steps.begin(), program.steps.end(),
                       [](const StepRecord& step) { return is_kind(step, StepKind::Reduction); });
  }

  bool is_large(const CoreStep& step) const {
    const OperandRecord& output = *step.output().record;
    return is_device(output) && program_.symbols[output.symbol].bytes >= kStreamedBytes;
  }

  Unit bind_unit(const Machine& machine, size_t begin, size_t end, int core,
                 const Loops& loops) const {
    Unit chain;
    chain.reserve(end - begin);
    for (size_t node = begin; node < end; ++node) {
      CoreStep& step =
          chain.emplace_back(bind_step(machine, program_.nodes[node].step, core, loops.span()));
      if (step.iterations() != 0) step.operand[step.record->inputs].is_streamed = is_large(step);
    }
    return chain;
  }

  // Too few cores to keep the threads busy: chain by chain, the cores' iterations cut into slices.
  void run_sliced(size_t begin, size_t end, Loops& loops) {
    for (size_t node = begin, next = begin; node < end; node = next) {
      if (is_matmul(node)) {
        next = after(node);
        run_joint_step(program_.nodes[node].step, loops);
      } else if (is_step(node)) {
        next = chain_end(node, end);
        run_chain_sliced(node, next, loops);
      } else {
        next = after(node);
        iterate(node, loops, [&] { run_sliced(node + 1, next, loops); });
      }
    }
  }

  void run_chain_sliced(size_t begin, size_t end, const Loops& loops) {
    const StepRecord& record = step_of(begin);
    const int slices = 1 + 2 * pool_.threads() / std::popcount(record.cores);
    std::vector<Unit> parts;
    int64_t elements = 0;
    for (int core = 0; core < kCores; ++core) {
      if (!has_core(record.cores, core)) continue;
      Unit whole = bind_unit(machine_, begin, end, core, loops);
      if (whole[0].iterations() == 0) continue;
      elements += whole[0].iterations() * whole[0].lanes;
      const int dim = slice_dimension(whole);
      if (dim < 0) {
        parts.push_back(std::move(whole));
        continue;
      }
      const int64_t extent = whole[0].extent[dim];
      const int64_t count = std::min<int64_t>(slices, extent);
      for (int64_t i = 0; i < count; ++i) {
        Unit& part = parts.emplace_back();
        for (const CoreStep& step : whole) {
          part.push_back(slice_step(step, dim, extent * i / count, extent * (i + 1) / count));
        }
      }
    }
    const auto run_part = [&](int i) {
      stop_if_cancelled();
      run_unit(parts[i]);
    };
    if (elements >= kParallelElements) {
      pool_.run(static_cast<int>(parts.size()), run_part);
    } else {
      for (int i = 0; i < static_cast<int>(parts.size()); ++i) run_part(i);
    }
  }

  const Machine& machine_;
  const Program& program_;
  ThreadPool& pool_;
  const StepTable& steps_;
  const std::atomic<bool>& is_cancelled_;
  const bool is_parallel_;
  const bool may_slice_;
  std::vector<uint8_t> ends_segment_;  // per node
  const bool is_one_segment_;
};

}  // namespace

Executor::Executor(ThreadPool& pool, const StepTable& steps) : pool_(pool), steps_(steps) {}

Executor::~Executor() {
  if (lx_ != nullptr) munmap(lx_, kLxTotal);
}

std::byte* Executor::scratchpads() {
  if (lx_ == nullptr) {
    void* mapped = mmap(nullptr, kLxTotal, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    lx_ = static_cast<std::byte*>(mapped);
  }
  return lx_;
}

void Executor::run(const Program& program, std::span<const Binding> bindings, std::byte* device) {
  const Machine machine{program, bindings, device, scratchpads()};
  Launch(machine, pool_, steps_, is_cancelled_).run();
}

}  // namespace spyre
