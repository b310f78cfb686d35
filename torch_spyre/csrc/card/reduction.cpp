// Reduction steps: partial results of a block of outputs stay in L1 while the inputs stream by.
//
// The dimensions that are kept may be walked in any order, those that are accumulated only in
// theirs: that order, not the blocks or the threads, decides the bits.
//
// The partners of a ring make the partial results of a block each for itself, on any thread; then
// one thread combines them in core order.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "step.h"
#include "walk.h"

namespace spyre {
namespace {

using kernels::kBlockElements;
using kernels::Word;

// Rows that follow each other are read from so many places at a time: sums stay in registers that
// long, and the host's prefetching keeps up.
constexpr int64_t kStreams = 4;
// Blocks of partial results that a ring keeps at one time: 8 MiB.
constexpr int64_t kPartialBlocks = 1024;

struct Dimension {
  int64_t extent = 1;
  int64_t from = 0;  // byte strides
  int64_t to = 0;
};

struct Dimensions {
  int rank = 0;
  std::array<Dimension, kStepRank> at{};

  int64_t size() const {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= at[i].extent;
    return product;
  }
};

// Adds a dimension inside the others; one that continues the last one is merged with it.
void add_inner(Dimensions& dims, const Dimension& inner, bool may_merge = true) {
  if (inner.extent == 1 && may_merge) return;
  if (may_merge && dims.rank > 0) {
    Dimension& outer = dims.at[dims.rank - 1];
    if (outer.from == inner.from * inner.extent && outer.to == inner.to * inner.extent) {
      outer = {outer.extent * inner.extent, inner.from, inner.to};
      return;
    }
  }
  dims.at[dims.rank++] = inner;
}

// Counts through dimensions, the last one fastest.
class Odometer {
 public:
  Odometer(const Dimensions& dims, int rank) : dims_(dims), rank_(rank) {}
  int64_t from = 0, to = 0;
  int64_t index(int dim) const { return index_[dim]; }

  // False after the last place.
  bool next() {
    for (int dim = rank_; dim-- > 0;) {
      const Dimension& dimension = dims_.at[dim];
      from += dimension.from;
      to += dimension.to;
      if (++index_[dim] < dimension.extent) return true;
      from -= dimension.from * dimension.extent;
      to -= dimension.to * dimension.extent;
      index_[dim] = 0;
    }
    return false;
  }

 private:
  const Dimensions& dims_;
  const int rank_;
  std::array<int64_t, kStepRank> index_{};
};

// How much of an iteration counts: lanes below `lanes`, of them those of the first `tiles` sticks
// are read, the others are zeros.
struct Part {
  int lanes;
  int tiles;
};

// Results that are made at one time: `rows` iterations of the innermost kept dimension, from these
// places of the input and the output on.
struct Block {
  int64_t from, to;
  int64_t rows;
};

// A step on one core, or on a slice of one. If the stick dimension is kept: without a tail, or
// nothing but the tail.
class ReductionRun {
 public:
  ReductionRun(const CoreStep& step, bool is_tail)
      : step_(step),
        kernel_(kernels::table().reduction[step.record->opcode - kernels::kFirstReduction]),
        input_(*step.operand[0].record),
        output_(*step.output().record),
        load_(kernels::table().load[input_.format]),
        store_(kernels::table().store[output_.format]),
        lanes_(step.lanes),
        is_tail_(is_tail),
        whole_{lanes_, present_tiles(step.operand[0])} {
    split_dimensions();
    choose_direct();
  }

  void run() {
    for_each_block([&](const Block& block) {
      accumulate(block);
      finish();
      store(block, step_.output().address);
    });
  }

  template <typename Visit>
  void for_each_block(Visit visit) const {
    const Dimension& inner = kept_.at[kept_.rank - 1];
    const int64_t most = std::max<int64_t>(1, kBlockElements / lanes_);
    Odometer place(kept_, kept_.rank - 1);
    do {
      for (int64_t i = 0; i < inner.extent; i += most) {
        visit(Block{place.from + i * inner.from, place.to + i * inner.to,
                    std::min(most, inner.extent - i)});
      }
    } while (place.next());
  }

  // The steps of a block: partial results of this core; those of the next partner, which follow
  // them; what is done once, after the last; and to where the block's results are stored.
  void accumulate(const Block& block) {
    rows_ = block.rows;
    std::fill_n(sums_.data(), rows_ * lanes_, kernel_.neutral);
    accumulate(step_.operand[0].address + block.from);
  }

  void merge(const Word* partial) { kernel_.merge(partial, sums_.data(), rows_ * lanes_); }

  void finish() {
    const bool is_first = lanes_of(output_) == Lanes::First;
    if (is_first) kernel_.combine_lanes(sums_.data(), rows_, lanes_);
    const int64_t words = is_first ? rows_ : rows_ * lanes_;
    const Word count = step_.record->inputs > 1 ? step_.operand[1].word : 0;
    kernel_.finish(sums_.data(), words, count);
  }

  void store(const Block& block, std::byte* output) {
    const int64_t stride = kept_.at[kept_.rank - 1].to;
    if (lanes_of(output_) == Lanes::First) {
      store_first_lanes(output + block.to, stride);
    } else {
      store_sticks(output + block.to, stride);
    }
  }

  void copy_sums(Word* to) const { std::copy_n(sums_.data(), rows_ * lanes_, to); }
  void set_sums(const Block& block, const Word* from) {
    rows_ = block.rows;
    std::copy_n(from, rows_ * lanes_, sums_.data());
  }

 private:
  // ---- The iteration space ---------------------------------------------------------------------

  void split_dimensions() {
    const StepRecord& record = *step_.record;
    for (int dim = 0; dim < record.rank; ++dim) {
      const Dimension whole{step_.extent[dim], input_.stride[dim], output_.stride[dim]};
      if (!is_reduced(record, dim)) {
        insert_kept(whole);
        continue;
      }
      Dimension part = whole;
      part.to = 0;
      bool ends_inside = step_.is_tail && dim == record.stick_dim;
      if (ends_inside) {
        last_index_ = part.extent - 1;
        last_ = {lanes_, input_.tail_tiles};
      }
      clip(dim, part, ends_inside);
      if (ends_inside) last_dim_ = reduced_.rank;
      const bool follows_last = last_dim_ >= 0 && last_dim_ == reduced_.rank - 1;
      add_inner(reduced_, part, !ends_inside && !follows_last);
    }
    Dimensions merged;
    for (int i = 0; i < kept_.rank; ++i) add_inner(merged, kept_.at[i]);
    kept_ = merged;
    if (kept_.rank == 0) kept_.at[kept_.rank++] = {};
    row_stride_ = kept_.at[kept_.rank - 1].from;
  }

  // By the input's stride, the largest first; equal ones keep their order.
  void insert_kept(const Dimension& dimension) {
    if (dimension.extent == 1) return;
    int place = kept_.rank++;
    for (; place > 0 && std::abs(kept_.at[place - 1].from) < std::abs(dimension.from); --place) {
      kept_.at[place] = kept_.at[place - 1];
    }
    kept_.at[place] = dimension;
  }

  // Cuts off what the mask leaves out; `ends_inside` if the last iteration is cut in its lanes.
  void clip(int dim, Dimension& part, bool& ends_inside) {
    for (int i = 0; i < step_.record->masks; ++i) {
      const CoreMask& mask = step_.mask[i];
      if (mask.dim != dim) continue;
      const int64_t unit = counts_lanes(*step_.record, dim) ? lanes_ : 1;
      const int64_t count = std::clamp<int64_t>(mask.count, 0, part.extent * unit);
      const int64_t extent = (count + unit - 1) / unit;
      if (extent < part.extent) ends_inside = false;  // the tail is cut off
      part.extent = extent;
      if (count % unit == 0) continue;
      if (!ends_inside) last_.tiles = whole_.tiles;
      last_.lanes = static_cast<int>(count % unit);
      last_index_ = extent - 1;
      ends_inside = true;
    }
  }

  // Inputs that the kernel takes as they lie in memory.
  void choose_direct() {
    const bool is_plain =
        lanes_of(input_) == Lanes::Vector ? step_.operand[0].tiles == 1 : lanes_ == 1;
    direct_ = is_plain ? kernel_.accumulate[input_.format] : nullptr;
  }

  // ---- Accumulation ----------------------------------------------------------------------------

  void accumulate(const std::byte* from) {
    if (reduced_.size() == 0) return;
    const int outer = std::max(0, reduced_.rank - 1);
    const Dimension run = reduced_.rank > 0 ? reduced_.at[outer] : Dimension{};
    Odometer place(reduced_, outer);
    do {
      if (last_dim_ == outer && last_dim_ >= 0) {
        accumulate_run(from + place.from, run.extent - 1, run.from, whole_);
        accumulate_run(from + place.from + last_index_ * run.from, 1, 0, last_);
      } else {
        const bool is_last = last_dim_ >= 0 && place.index(last_dim_) == last_index_;
        accumulate_run(from + place.from, run.extent, run.from, is_last ? last_ : whole_);
      }
    } while (place.next());
  }

  // `count` iterations of the innermost accumulated dimension, for all rows of the block.
  void accumulate_run(const std::byte* from, int64_t count, int64_t stride, Part part) {
    if (count == 0) return;
    const bool is_whole = part.lanes == lanes_ && part.tiles == step_.operand[0].tiles;
    if (!is_whole || direct_ == nullptr) {
      for (int64_t k = 0; k < count; ++k) {
        widen_rows(from + k * stride, part);
        kernel_.words(reinterpret_cast<const std::byte*>(words_.data()), 0, 1, sums_.data(),
                      rows_ * lanes_);
      }
      return;
    }
    const int64_t bytes = lanes_ * element_bytes(format_of(input_));
    const bool rows_follow = rows_ == 1 || row_stride_ == bytes;
    if (rows_follow && (count == 1 || rows_ == 1 || std::abs(stride) >= rows_ * bytes)) {
      const int64_t streams = rows_ == 1 ? count : kStreams;
      for (int64_t k = 0; k < count; k += streams) {
        direct_(from + k * stride, stride, std::min(streams, count - k), sums_.data(),
                rows_ * lanes_);
      }
      return;
    }
    for (int64_t row = 0; row < rows_; ++row) {
      direct_(from + row * row_stride_, stride, count, sums_.data() + row * lanes_, lanes_);
    }
  }

  // One iteration of each row as words, neutral where it does not count.
  void widen_rows(const std::byte* from, Part part) {
    const bool is_first = lanes_of(input_) == Lanes::First;
    const int tile_lanes = lanes_ / step_.operand[0].tiles;
    for (int64_t row = 0; row < rows_; ++row, from += row_stride_) {
      Word* const words = words_.data() + row * lanes_;
      if (is_first) {
        load_(from, words, 1);
        std::fill_n(words + 1, lanes_ - 1, words[0]);
      } else {
        for (int tile = 0; tile < part.tiles; ++tile) {
          load_(from + tile * input_.tile_stride, words + tile * tile_lanes, tile_lanes);
        }
        std::fill(words + part.tiles * tile_lanes, words + lanes_, Word{0});
      }
      std::fill(words + part.lanes, words + lanes_, kernel_.neutral);
    }
  }

  // ---- Results ---------------------------------------------------------------------------------

  void store_first_lanes(std::byte* to, int64_t stride) {
    const int bytes = element_bytes(format_of(output_));
    auto* const narrow = reinterpret_cast<std::byte*>(words_.data());
    store_(sums_.data(), narrow, rows_);
    for (int64_t row = 0; row < rows_; ++row) {
      std::memset(to + row * stride, 0, kStickBytes);
      std::memcpy(to + row * stride, narrow + row * bytes, static_cast<size_t>(bytes));
    }
  }

  void store_sticks(std::byte* to, int64_t stride) {
    const int tiles = step_.output().tiles;
    const int present = present_tiles(step_.output());
    const int tile_lanes = lanes_ / tiles;
    if (tiles == 1 && (rows_ == 1 || stride == kStickBytes)) {
      store_(sums_.data(), to, rows_ * lanes_);
      return;
    }
    for (int64_t row = 0; row < rows_; ++row) {
      for (int tile = 0; tile < present; ++tile) {
        store_(sums_.data() + row * lanes_ + tile * tile_lanes,
               to + row * stride + tile * output_.tile_stride, tile_lanes);
      }
    }
  }

  // Sticks of an iteration, where the stick dimension is kept.
  int present_tiles(const CoreOperand& operand) const {
    const int tail = operand.record->tail_tiles;
    return is_tail_ && tail != 0 ? tail : operand.tiles;
  }

  const CoreStep& step_;
  const kernels::Reduction& kernel_;
  const OperandRecord& input_;
  const OperandRecord& output_;
  const kernels::Load load_;
  const kernels::Store store_;
  const int lanes_;
  const bool is_tail_;
  const Part whole_;
  kernels::Reduction::Accumulate direct_ = nullptr;
  Dimensions kept_, reduced_;
  // The accumulated dimension whose last iteration is only partly there, and what is there.
  int last_dim_ = -1;
  int64_t last_index_ = 0;
  Part last_{};
  int64_t rows_ = 0;  // of the block
  int64_t row_stride_ = 0;
  alignas(64) std::array<Word, kBlockElements> sums_;
  alignas(64) std::array<Word, kBlockElements> words_;
};

// The cores of a ring. As for a core alone, a tail of results stands apart.
struct Ring {
  std::vector<CoreStep> partners;
  bool is_tail;
};

std::vector<Ring> rings_of(std::span<const CoreStep> cores) {
  const auto partners = static_cast<size_t>(partners_of(*cores[0].record));
  const int dim = cores[0].record->stick_dim;
  std::vector<Ring> rings;
  for (size_t i = 0; i < cores.size(); i += partners) {
    const std::span<const CoreStep> group = cores.subspan(i, partners);
    if (dim == kNoStickDim || is_reduced(*group[0].record, dim) || !group[0].is_tail) {
      rings.push_back({{group.begin(), group.end()}, false});
      continue;
    }
    const int64_t last = group[0].extent[dim] - 1;
    Ring whole{{}, false}, tail{{}, true};
    for (const CoreStep& core : group) {
      if (last > 0) whole.partners.push_back(slice_step(core, dim, 0, last));
      tail.partners.push_back(slice_step(core, dim, last, last + 1));
    }
    if (last > 0) rings.push_back(std::move(whole));
    rings.push_back(std::move(tail));
  }
  return rings;
}

// Blocks of results of all rings of a step.
class RingReduction {
 public:
  RingReduction(std::span<const CoreStep> cores, ThreadPool* pool)
      : pool_(pool),
        partners_(partners_of(*cores[0].record)),
        copies_(storing_partners(cores)),
        rings_(rings_of(cores)) {
    for (const Ring& ring : rings_) {
      ReductionRun(ring.partners[0], ring.is_tail).for_each_block([&](const Block& block) {
        jobs_.push_back({&ring, block});
      });
    }
  }

  void run() {
    const size_t batch = std::max<int64_t>(1, kPartialBlocks / partners_);
    partials_.resize(std::min(batch, jobs_.size()) * partners_ * kBlockElements);
    for (size_t first = 0; first < jobs_.size(); first += batch) {
      const auto count = static_cast<int>(std::min(batch, jobs_.size() - first));
      each(count * partners_, [&](int i) { accumulate(jobs_[first + i / partners_], i); });
      each(count, [&](int i) { combine(jobs_[first + i], i); });
    }
  }

 private:
  struct Job {
    const Ring* ring;
    Block block;
  };

  template <typename Body>
  void each(int count, Body body) const {
    if (pool_ != nullptr) {
      pool_->run(count, body);
    } else {
      for (int i = 0; i < count; ++i) body(i);
    }
  }

  Word* partial(int i) { return partials_.data() + i * kBlockElements; }

  void accumulate(const Job& job, int i) {
    ReductionRun run(job.ring->partners[i % partners_], job.ring->is_tail);
    run.accumulate(job.block);
    run.copy_sums(partial(i));
  }

  void combine(const Job& job, int i) {
    ReductionRun run(job.ring->partners[0], job.ring->is_tail);
    run.set_sums(job.block, partial(i * partners_));
    for (int k = 1; k < partners_; ++k) run.merge(partial(i * partners_ + k));
    run.finish();
    for (int k = 0; k < copies_; ++k) {
      run.store(job.block, job.ring->partners[k].output().address);
    }
  }

  ThreadPool* pool_;
  const int partners_;
  const int copies_;
  const std::vector<Ring> rings_;
  std::vector<Job> jobs_;
  std::vector<Word> partials_;
};

}  // namespace

void run_ring_reduction(std::span<const CoreStep> cores, ThreadPool* pool) {
  if (!cores.empty()) RingReduction(cores, pool).run();
}

void run_reduction(const CoreStep& step) {
  const int dim = step.record->stick_dim;
  if (!step.is_tail || is_reduced(*step.record, dim)) {
    ReductionRun(step, false).run();
    return;
  }
  const int64_t last = step.extent[dim] - 1;
  if (last > 0) ReductionRun(slice_step(step, dim, 0, last), false).run();
  ReductionRun(slice_step(step, dim, last, last + 1), true).run();
}

}  // namespace spyre
