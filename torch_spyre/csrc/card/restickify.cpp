// Restickify steps: element by element, from any aligned place to any other.
#include <algorithm>
#include <array>

#include "step.h"
#include "walk.h"

namespace spyre {
namespace {

using kernels::CopyNest;
using kernels::kBlockElements;
using kernels::Word;

// Between formats of one domain: gather a piece of the innermost loop, widen, narrow, scatter.
class ConvertingMove {
 public:
  ConvertingMove(const CopyNest& nest, DataFormat from, DataFormat to)
      : nest_(nest),
        table_(kernels::table()),
        load_(table_.load[static_cast<int>(from)]),
        store_(table_.store[static_cast<int>(to)]),
        from_bytes_(element_bytes(from)),
        to_bytes_(element_bytes(to)) {}

  void run(const std::byte* from, std::byte* to) { run(0, from, to); }

 private:
  void run(int dim, const std::byte* from, std::byte* to) {
    if (dim + 1 < nest_.rank) {
      for (int64_t i = 0; i < nest_.extent[dim]; ++i) {
        run(dim + 1, from + i * nest_.from_stride[dim], to + i * nest_.to_stride[dim]);
      }
      return;
    }
    const bool is_loop = dim < nest_.rank;
    const int64_t extent = is_loop ? nest_.extent[dim] : 1;
    const int64_t from_stride = is_loop ? nest_.from_stride[dim] : 0;
    const int64_t to_stride = is_loop ? nest_.to_stride[dim] : 0;
    for (int64_t i = 0; i < extent; i += kBlockElements) {
      const int64_t n = std::min(kBlockElements, extent - i);
      table_.move_tile(from_bytes_, from + i * from_stride, 0, from_stride, bytes_.data(), 0,
                       from_bytes_, 1, n);
      load_(bytes_.data(), words_.data(), n);
      store_(words_.data(), bytes_.data(), n);
      table_.move_tile(to_bytes_, bytes_.data(), 0, to_bytes_, to + i * to_stride, 0, to_stride, 1,
                       n);
    }
  }

  const CopyNest& nest_;
  const kernels::Table& table_;
  const kernels::Load load_;
  const kernels::Store store_;
  const int from_bytes_;
  const int to_bytes_;
  alignas(64) std::array<Word, kBlockElements> words_;
  alignas(64) std::array<std::byte, kBlockElements * sizeof(Word)> bytes_;
};

}  // namespace

void run_restickify(const CoreStep& step) {
  const CoreOperand& from = step.operand[0];
  const CoreOperand& to = step.operand[1];
  CopyNest nest;
  for (int dim = 0; dim < step.record->rank; ++dim) {
    if (step.extent[dim] == 1) continue;
    nest.extent[nest.rank] = step.extent[dim];
    nest.from_stride[nest.rank] = from.record->stride[dim];
    nest.to_stride[nest.rank] = to.record->stride[dim];
    ++nest.rank;
  }
  nest = kernels::simplify(nest);
  const DataFormat from_format = format_of(*from.record);
  const DataFormat to_format = format_of(*to.record);
  if (from_format == to_format) {
    const int bytes = element_bytes(from_format);
    kernels::run_copy(nest, {bytes, bytes, nullptr}, from.address, to.address);
  } else {
    ConvertingMove(nest, from_format, to_format).run(from.address, to.address);
  }
}

}  // namespace spyre
