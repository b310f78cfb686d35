// Matmul steps: all cores of a step as one computation.
//
// Problems (see products.h) are cut into *tasks*, rows x sticks that fit the host's caches. A task
// widens blocks of A and B as it comes to them, and carries C as fp32 from block to block of k, so
// each element of C is computed by one thread, in k order. Of the parts of a ring a task makes the
// partial sums of one after the other and adds them up, so threads have no say in it.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "combine.h"
#include "products.h"
#include "step.h"
#include "walk.h"

namespace spyre {
namespace {

using kernels::kProductDepth;
using kernels::kProductStride;
using kernels::Word;

// A task's rows and columns: enough to make widening cheap beside multiplying, and few enough for
// its block of A to stay in a host core's L2.
constexpr int64_t kTaskRows = 512;
constexpr int64_t kTaskColumns = 512;
constexpr int64_t kTasksPerThread = 4;  // so that no thread waits long for the last one
// Up to this many rows, B is read once from end to end, a stick of columns after the other, and
// the rows are widened before; k per block of B so small that it is still in L1 when it is used.
constexpr int64_t kFewRows = 16;
constexpr int kFewRowsDepth = 64;
constexpr int kFewRowsBlocks = 16;  // of A, kProductDepth each

struct Task {
  const Problem* problem;
  int64_t first_row, rows;
  int64_t first_panel, panels;
};

int64_t pieces_of(int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; }

void cut(const Problem& problem, int64_t row_pieces, int64_t panel_pieces,
         std::vector<Task>& tasks) {
  const auto rows = static_cast<int64_t>(problem.rows.size());
  const auto panels = static_cast<int64_t>(problem.panels.size());
  for (int64_t i = 0; i < row_pieces; ++i) {
    const int64_t row = rows * i / row_pieces;
    for (int64_t j = 0; j < panel_pieces; ++j) {
      const int64_t panel = panels * j / panel_pieces;
      tasks.push_back({&problem, row, rows * (i + 1) / row_pieces - row, panel,
                       panels * (j + 1) / panel_pieces - panel});
    }
  }
}

std::vector<Task> make_tasks(const std::vector<Problem>& problems, int lanes, int threads) {
  const int64_t wanted =
      threads == 1 ? 1
                   : pieces_of(kTasksPerThread * threads, static_cast<int64_t>(problems.size()));
  std::vector<Task> tasks;
  for (const Problem& problem : problems) {
    const auto rows = static_cast<int64_t>(problem.rows.size());
    const auto panels = static_cast<int64_t>(problem.panels.size());
    int64_t row_pieces = pieces_of(rows, kTaskRows);
    // Rows for each thread: what a thread makes of them, it has in its caches afterwards.
    if (wanted >= threads && rows >= 2 * kFewRows * threads) {
      row_pieces = std::max<int64_t>(row_pieces, threads);
    }
    int64_t panel_pieces = pieces_of(panels * lanes, kTaskColumns);
    panel_pieces = std::min(panel_pieces, panels);
    // Halves whatever is larger, down to a stick of columns and a few rows.
    while (row_pieces * panel_pieces < wanted) {
      const bool has_panels = panel_pieces * 2 <= panels;
      const bool has_rows = rows / row_pieces >= 2 * kFewRows;
      if (!has_panels && !has_rows) break;
      const bool is_wide = panels * lanes / panel_pieces > rows / row_pieces;
      (has_panels && (is_wide || !has_rows) ? panel_pieces : row_pieces) *= 2;
    }
    cut(problem, row_pieces, panel_pieces, tasks);
  }
  return tasks;
}

// ---- A task -------------------------------------------------------------------------------------

// How a task goes along k: *chunks* of B, whose widened form is used at once, in *blocks* of A, of
// which `blocks` are widened before the task goes over its panels.
struct Pace {
  bool is_few;
  size_t chunk_sticks, block_sticks, blocks;

  Pace(int64_t rows, int k_lanes)
      : is_few(rows <= kFewRows),
        chunk_sticks(std::max(1, (is_few ? kFewRowsDepth : kProductDepth) / k_lanes)),
        block_sticks(kProductDepth / k_lanes),
        blocks(is_few ? kFewRowsBlocks : 1) {}

  size_t outer_sticks() const { return block_sticks * blocks; }
};

// The words a task works on.
class Workspace {
 public:
  Workspace(int64_t a, int64_t b, int64_t c, int64_t total)
      : words_(allocate(a + b + c + total)), b_(a), c_(a + b), total_(a + b + c) {}

  Word* a() const { return words_.get(); }
  Word* b() const { return words_.get() + b_; }
  Word* c() const { return words_.get() + c_; }
  Word* total() const { return words_.get() + total_; }  // of the parts so far

 private:
  struct Free {
    void operator()(Word* words) const { std::free(words); }
  };
  // Not cleared: every word is written before it is read.
  static Word* allocate(int64_t words) {
    constexpr int64_t kLine = 64;
    const int64_t bytes = pieces_of(words * static_cast<int64_t>(sizeof(Word)), kLine) * kLine;
    void* memory = std::aligned_alloc(kLine, static_cast<size_t>(bytes));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<Word*>(memory);
  }

  std::unique_ptr<Word, Free> words_;
  int64_t b_, c_, total_;
};

// The operands as the step describes them, the same for all cores.
struct Operands {
  Operands(const CoreStep& step, int stored)
      : lanes(step.lanes),
        k_lanes(k_lanes_of(step)),
        load_a(kernels::table().load_factor[step.operand[0].record->format]),
        load_b(kernels::table().load_factor[step.operand[1].record->format]),
        store_c(kernels::table().store[step.output().record->format]),
        multiply(kernels::table().multiply),
        stream(kernels::table().stream[step.operand[1].record->format]),
        stream_rows(kernels::table().stream_rows),
        is_b_fp32(format_of(*step.operand[1].record) == DataFormat::IEEE_FP32),
        b_row(step.operand[1].record->tile_stride),
        copies(stored),
        c_lanes(step.lanes / step.output().tiles),
        c_tile(step.output().record->tile_stride) {}

  int lanes;    // columns of a panel
  int k_lanes;  // elements of a stick of A
  kernels::Load load_a, load_b;
  kernels::Store store_c;
  kernels::Multiply multiply;
  kernels::Stream stream;
  int stream_rows;
  bool is_b_fp32;
  int64_t b_row;  // bytes from one row of k to the next
  int copies;     // of the results
  int c_lanes;    // of one stick of C
  int64_t c_tile;
};

class TaskRun {
 public:
  TaskRun(const Operands& operands, const Depth& depth, const Task& task, const Workspace& space)
      : operands_(operands),
        depth_(depth.sticks),
        ends_(depth.ends),
        task_(task),
        pace_(task.rows, operands.k_lanes),
        space_(space) {}

  void run() {
    for (part_ = 0; part_ < ends_.size(); ++part_) {
      begin_ = part_ == 0 ? 0 : ends_[part_ - 1];
      end_ = ends_[part_];
      run_part();
    }
  }

 private:
  void run_part() const {
    if (begin_ == end_) {
      for (int64_t i = 0; i < task_.panels; ++i) {
        std::fill_n(space_.c(), panel_words(), Word{0});
        finish_part(i, space_.c());
      }
      return;
    }
    for (size_t first = begin_; first < end_; first += pace_.outer_sticks()) {
      const size_t end = std::min(first + pace_.outer_sticks(), end_);
      widen_rows(first, end);
      // If k ends here, C goes from one panel to the next: nothing later comes back to it.
      const bool is_whole = first == begin_ && end == end_;
      for (int64_t i = 0; i < task_.panels; ++i) {
        Word* c = space_.c() + (is_whole ? 0 : i * panel_words());
        multiply(panel(i), first, end, c);
        if (end == end_) finish_part(i, c);
      }
    }
  }

  // The sums of a panel over one part are complete: the next partner adds its own to them.
  void finish_part(int64_t i, Word* c) const {
    if (ends_.size() > 1) {
      Word* const total = space_.total() + i * panel_words();
      if (part_ == 0) {
        std::copy_n(c, panel_words(), total);
      } else {
        for (int64_t k = 0; k < panel_words(); ++k) total[k] = one_nan(Sum::next(total[k], c[k]));
      }
      c = total;
    }
    if (part_ == ends_.size() - 1) store(panel(i), c);
  }

  const Panel& panel(int64_t i) const { return task_.problem->panels[task_.first_panel + i]; }
  int64_t panel_words() const { return task_.rows * operands_.lanes; }

  // Sticks [first, end) of every row, a block after the other. Stick by stick: the same one of
  // neighbouring rows follows it in memory, which is an order that the host fetches ahead.
  void widen_rows(size_t first, size_t end) const {
    Word* to = space_.a();
    for (size_t block = first; block < end; block += pace_.block_sticks) {
      const size_t block_end = std::min(block + pace_.block_sticks, end);
      int64_t k = 0;
      for (size_t i = block; i < block_end; ++i) {
        for (int64_t row = 0; row < task_.rows; ++row) {
          const std::byte* from = task_.problem->rows[task_.first_row + row] + depth_[i].a;
          operands_.load_a(from, to + row * kProductStride + k, depth_[i].count);
        }
        k += depth_[i].count;
      }
      to += task_.rows * kProductStride;
    }
  }

  // Sticks [first, end) of k, for one panel.
  void multiply(const Panel& panel, size_t first, size_t end, Word* c) const {
    const Word* rows = space_.a();
    for (size_t block = first; block < end; block += pace_.block_sticks) {
      const size_t block_end = std::min(block + pace_.block_sticks, end);
      int64_t k = 0;
      for (size_t chunk = block; chunk < block_end; chunk += pace_.chunk_sticks) {
        const size_t chunk_end = std::min(chunk + pace_.chunk_sticks, block_end);
        kernels::Product product{.a = rows + k,
                                 .b = nullptr,
                                 .c = c,
                                 .b_stride = operands_.lanes,
                                 .k = 0,
                                 .rows = static_cast<int>(task_.rows),
                                 .columns = operands_.lanes,
                                 .is_first = chunk == begin_,
                                 .is_last = chunk_end == end_};
        if (is_streamed() && chunk_end == chunk + 1) {
          product.b_stride = operands_.b_row;
          product.k = depth_[chunk].count;
          operands_.stream(product, panel.b + depth_[chunk].b);
        } else {
          product.b = widen_panel(panel.b, chunk, chunk_end, product.k);
          operands_.multiply(product);
        }
        k += product.k;
      }
      rows += task_.rows * kProductStride;
    }
  }

  bool is_streamed() const {
    return operands_.stream != nullptr && task_.rows <= operands_.stream_rows;
  }

  // The rows of B of a chunk, `count` of them; in place where they are fp32 and follow each other.
  const Word* widen_panel(const std::byte* b, size_t first, size_t end, int64_t& count) const {
    Word* words = space_.b();
    for (size_t i = first; i < end;) {
      const std::byte* from = b + depth_[i].b;
      int64_t rows = depth_[i++].count;
      if (operands_.b_row != kStickBytes) {
        for (int64_t row = 0; row < rows; ++row) {
          operands_.load_b(from + row * operands_.b_row, words + row * operands_.lanes,
                           operands_.lanes);
        }
      } else {
        while (i < end && b + depth_[i].b == from + rows * kStickBytes) rows += depth_[i++].count;
        if (operands_.is_b_fp32 && count == 0 && i == end) {
          count = rows;
          return reinterpret_cast<const Word*>(from);
        }
        operands_.load_b(from, words, rows * operands_.lanes);
      }
      count += rows;
      words += rows * operands_.lanes;
    }
    return space_.b();
  }

  void store(const Panel& panel, const Word* c) const {
    for (int copy = 0; copy < operands_.copies; ++copy) store_copy(panel, copy, c);
  }

  void store_copy(const Panel& panel, int copy, const Word* c) const {
    const std::vector<std::byte*>& rows = task_.problem->results[panel.results + copy];
    for (int64_t row = 0; row < task_.rows; ++row) {
      std::byte* to = rows[task_.first_row + row] + panel.c;
      for (int tile = 0; tile < panel.tiles; ++tile) {
        operands_.store_c(c + tile * operands_.c_lanes, to + tile * operands_.c_tile,
                          operands_.c_lanes);
      }
      c += operands_.lanes;
    }
  }

  const Operands& operands_;
  const std::vector<DepthStick>& depth_;
  const std::vector<size_t>& ends_;
  const Task& task_;
  const Pace pace_;
  const Workspace& space_;
  size_t part_ = 0, begin_ = 0, end_ = 0;  // the part under way, in sticks of k
};

// One workspace per thread, as large as the largest task needs; handed out and taken back.
class Workspaces {
 public:
  Workspaces(const std::vector<Task>& tasks, const std::vector<Depth>& depths, int lanes,
             int k_lanes, int64_t count) {
    int64_t a = 0, b = 0, c = 0, total = 0;
    for (const Task& task : tasks) {
      const Pace pace(task.rows, k_lanes);
      const Depth& depth = depths[task.problem->depth];
      const size_t sticks = depth.longest_part();
      const auto blocks = static_cast<int64_t>(
          (std::min(sticks, pace.outer_sticks()) + pace.block_sticks - 1) / pace.block_sticks);
      a = std::max(a, blocks * task.rows * kProductStride);
      b = std::max(b, static_cast<int64_t>(pace.chunk_sticks) * k_lanes * lanes);
      const int64_t carried = sticks > pace.outer_sticks() ? task.panels : 1;
      c = std::max(c, carried * task.rows * lanes);
      if (depth.ends.size() > 1) total = std::max(total, task.panels * task.rows * lanes);
    }
    for (int64_t i = 0; i < count; ++i) {
      spaces_.push_back(std::make_unique<Workspace>(a, b, c, total));
      free_.push_back(spaces_.back().get());
    }
  }

  template <typename Body>
  void with_one(Body body) {
    Workspace* space = take();
    try {
      body(*space);
    } catch (...) {
      give_back(space);
      throw;
    }
    give_back(space);
  }

 private:
  Workspace* take() {
    const std::lock_guard lock(mutex_);
    Workspace* space = free_.back();
    free_.pop_back();
    return space;
  }
  void give_back(Workspace* space) {
    const std::lock_guard lock(mutex_);
    free_.push_back(space);
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> spaces_;
  std::vector<Workspace*> free_;
};

}  // namespace

void run_matmul(std::span<const CoreStep> cores, ThreadPool* pool) {
  if (cores.empty()) return;
  const CoreStep& step = cores[0];
  const Products work = products_of(cores);
  const int threads = pool == nullptr ? 1 : pool->threads();
  const std::vector<Task> tasks = make_tasks(work.problems, step.lanes, threads);
  const auto count = static_cast<int64_t>(tasks.size());
  Workspaces spaces(tasks, work.depths, step.lanes, k_lanes_of(step),
                    std::min<int64_t>(threads, count));
  const Operands operands(step, work.copies);
  const auto run_task = [&](int i) {
    spaces.with_one([&](const Workspace& space) {
      TaskRun(operands, work.depths[tasks[i].problem->depth], tasks[i], space).run();
    });
  };
  if (pool != nullptr) {
    pool->run(static_cast<int>(count), run_task);
  } else {
    for (int i = 0; i < static_cast<int>(count); ++i) run_task(i);
  }
}

}  // namespace spyre
