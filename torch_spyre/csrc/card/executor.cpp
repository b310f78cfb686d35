#include "executor.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <vector>

#include "walk.h"

namespace spyre {
namespace {

constexpr int64_t kLxTotal = kCores * kLxBytes;
// Work below this is done before other threads have woken up.
constexpr int64_t kParallelElements = 64 * 1024;

// The indices of the loops around a node, outermost first.
struct Loops {
  std::array<uint32_t, kLoopDepth> index{};
  size_t depth = 0;
  std::span<const uint32_t> span() const { return {index.data(), depth}; }
};

// One launch. Nodes between barriers form a *segment*: a host thread carries a core through all of
// it, while the core's scratchpad is warm.
class Launch {
 public:
  Launch(const Machine& machine, ThreadPool& pool, const StepTable& steps,
         const std::atomic<bool>& is_cancelled)
      : machine_(machine),
        program_(machine.program),
        pool_(pool),
        steps_(steps),
        is_cancelled_(is_cancelled),
        is_parallel_(pool.threads() > 1 && program_.work >= kParallelElements) {}

  void run() {
    Loops loops;
    run_between_barriers(0, program_.nodes.size(), loops);
  }

 private:
  bool is_step(size_t node) const {
    return program_.nodes[node].kind == static_cast<uint32_t>(NodeKind::Step);
  }
  size_t after(size_t node) const {
    return node + 1 + (is_step(node) ? 0 : program_.nodes[node].size);
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

  void run_between_barriers(size_t begin, size_t end, Loops& loops) {
    size_t segment = begin;
    for (size_t node = begin; node < end; node = after(node)) {
      if (program_.barrier[node] == 0) continue;
      run_segment(segment, node, loops);
      segment = node;
      if (is_step(node)) continue;
      iterate(node, loops, [&] { run_between_barriers(node + 1, after(node), loops); });
      segment = after(node);
    }
    run_segment(segment, end, loops);
  }

  void run_segment(size_t begin, size_t end, Loops& loops) {
    if (begin == end) return;
    uint32_t mask = 0;
    for (size_t node = begin; node < end; ++node) {
      if (is_step(node)) mask |= program_.steps[program_.nodes[node].step].cores;
    }
    std::vector<int> cores;
    for (int core = 0; core < kCores; ++core) {
      if (has_core(mask, core)) cores.push_back(core);
    }
    const int count = static_cast<int>(cores.size());
    if (is_parallel_ && count < 2 * pool_.threads()) {
      run_sliced(begin, end, loops);
    } else if (is_parallel_) {
      pool_.run(count, [&](int i) {
        Loops own = loops;
        run_core(begin, end, cores[i], own);
      });
    } else {
      for (const int core : cores) run_core(begin, end, core, loops);
    }
  }

  void run_core(size_t begin, size_t end, int core, Loops& loops) const {
    for (size_t node = begin; node < end; node = after(node)) {
      if (!is_step(node)) {
        iterate(node, loops, [&] { run_core(node + 1, after(node), core, loops); });
        continue;
      }
      const uint32_t step = program_.nodes[node].step;
      const StepRecord& record = program_.steps[step];
      if (!has_core(record.cores, core)) continue;
      const CoreStep bound = bind_step(machine_, step, core, loops.span());
      stop_if_cancelled();
      if (bound.iterations() != 0) steps_[record.kind](bound);
    }
  }

  // Too few cores to keep the threads busy: step by step, the cores' iterations cut into slices.
  void run_sliced(size_t begin, size_t end, Loops& loops) {
    for (size_t node = begin; node < end; node = after(node)) {
      if (is_step(node)) {
        run_step_sliced(program_.nodes[node].step, loops);
      } else {
        iterate(node, loops, [&] { run_sliced(node + 1, after(node), loops); });
      }
    }
  }

  void run_step_sliced(uint32_t step, const Loops& loops) {
    const StepRecord& record = program_.steps[step];
    const int slices = 1 + 2 * pool_.threads() / std::popcount(record.cores);
    std::vector<CoreStep> parts;
    int64_t elements = 0;
    for (int core = 0; core < kCores; ++core) {
      if (!has_core(record.cores, core)) continue;
      const CoreStep whole = bind_step(machine_, step, core, loops.span());
      if (whole.iterations() == 0) continue;
      elements += whole.iterations() * whole.lanes;
      const int dim = slice_dimension(whole);
      if (dim < 0) {
        parts.push_back(whole);
        continue;
      }
      const int64_t extent = whole.extent[dim];
      const int64_t count = std::min<int64_t>(slices, extent);
      for (int64_t i = 0; i < count; ++i) {
        parts.push_back(slice_step(whole, dim, extent * i / count, extent * (i + 1) / count));
      }
    }
    const auto run_part = [&](int i) {
      stop_if_cancelled();
      steps_[record.kind](parts[i]);
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
