// Matmul steps against a loop that multiplies one pair of elements at a time with `std::fma`,
// rounded once: the same bits, however the work is cut over cores and threads, on every ISA.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/executor.h"
#include "../../torch_spyre/csrc/card/step.h"
#include "check.h"
#include "programs.h"

namespace {

using namespace spyre;
using Bytes = std::vector<std::byte>;

// What a dimension of the iteration space counts.
enum class Role : uint8_t { Batch, Row, Columns, Depth, DepthSticks };

struct Dim {
  Role role;
  int64_t extent;
};

// One step: its global shape, cut over `row_cores` x `column_cores` cores.
struct Case {
  std::vector<Dim> dims;
  DataFormat a = DataFormat::SEN169_FP16, b = DataFormat::SEN169_FP16, c = DataFormat::SEN169_FP16;
  int row_cores = 1, column_cores = 1;
  bool is_private = false;      // every core has its own A and C, as if they lay in LX
  bool has_tail = false;        // the last stick of columns lacks the second stick of C
  bool is_wild = false;         // with infinities, NaN and numbers of all sizes
  bool a_stands_still = false;  // along the batches
  int64_t lane_mask = -1;       // elements of the stick dimension of k that count
  int64_t depth_mask = -1;      // positions of the other dimension of k that count
};

// A bound step per core, over memory of its own. Layouts are dense, dimensions in random order.
class Bound {
 public:
  Bound(const Case& shape, uint64_t seed) : shape_(shape), random_(seed) {
    lanes_ = elems_per_stick(shape.b);
    describe();
    for (int operand = 0; operand < 3; ++operand) place(operand);
    for (int i = 0; i < shape.row_cores; ++i) {
      for (int j = 0; j < shape.column_cores; ++j) bind(i, j);
    }
    for (int operand = 0; operand < 2; ++operand) fill(operand);
    reset();
  }

  void reset() { std::fill(memory_[2].begin(), memory_[2].end(), std::byte{0xAB}); }
  const std::vector<CoreStep>& cores() const { return cores_; }
  const Bytes& result() const { return memory_[2]; }

  // The result as the definition has it, computed an element at a time.
  Bytes expected() const {
    Bytes out(memory_[2].size(), std::byte{0xAB});
    for (const CoreStep& core : cores_) {
      std::vector<int64_t> index(shape_.dims.size(), 0);
      do {
        for (int lane = 0; lane < lanes_; ++lane) multiply(core, index, lane, out);
      } while (next(core, index, false));
    }
    return out;
  }

 private:
  static bool is_integer(DataFormat format) { return format_info(format).domain == Domain::Int; }
  static bool is_depth(Role role) { return role == Role::Depth || role == Role::DepthSticks; }

  void describe() {
    record_.kind = static_cast<uint8_t>(StepKind::Matmul);
    record_.opcode = static_cast<uint16_t>(is_integer(shape_.b) ? Opcode::batchmatmul_int8
                                                                : Opcode::batchmatmul);
    record_.rank = static_cast<uint8_t>(shape_.dims.size());
    record_.inputs = 2;
    record_.outputs = 1;
    for (size_t dim = 0; dim < shape_.dims.size(); ++dim) {
      const Role role = shape_.dims[dim].role;
      if (role == Role::Columns) record_.stick_dim = static_cast<uint8_t>(dim);
      if (role == Role::DepthSticks) record_.lane_dim = static_cast<uint8_t>(dim);
      if (is_depth(role)) record_.reduced |= static_cast<uint8_t>(1 << dim);
    }
    record_.masks = static_cast<uint8_t>((shape_.lane_mask >= 0) + (shape_.depth_mask >= 0));
  }

  int tiles(int operand) const { return lanes_ / elems_per_stick(format(operand)); }

  DataFormat format(int operand) const {
    return operand == 0 ? shape_.a : operand == 1 ? shape_.b : shape_.c;
  }

  bool moves(int operand, Role role) const {
    switch (role) {
      case Role::Batch:
        return operand != 0 || !shape_.a_stands_still;
      case Role::Row:
        return operand != 1;
      case Role::Columns:
        return operand != 0;
      default:
        return operand != 2;
    }
  }

  // Dense strides; a last, inner dimension counts the sticks of one iteration.
  void place(int operand) {
    OperandRecord& record = operands_[operand];
    record.format = static_cast<uint8_t>(format(operand));
    const int sticks = operand == 1 ? lanes_ : tiles(operand);
    std::vector<int> order(shape_.dims.size() + 1);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    int64_t size = kStickBytes;
    for (const int dim : order) {
      if (dim == static_cast<int>(shape_.dims.size())) {
        record.tile_stride = sticks > 1 ? size : 0;
        size *= sticks;
      } else if (moves(operand, shape_.dims[dim].role)) {
        record.stride[dim] = size;
        size *= shape_.dims[dim].extent;
      }
    }
    size_[operand] = size;
    const bool has_copies = shape_.is_private && operand != 1;
    memory_[operand].resize(size * (has_copies ? shape_.row_cores * shape_.column_cores : 1) + 64);
    if (operand == 2) record.tail_tiles = shape_.has_tail ? 1 : 0;
  }

  std::byte* start(int operand) {
    void* memory = memory_[operand].data();
    size_t space = memory_[operand].size();
    return static_cast<std::byte*>(std::align(64, 1, memory, space));
  }

  void bind(int i, int j) {
    CoreStep core;
    core.record = &record_;
    core.lanes = lanes_;
    core.is_tail = shape_.has_tail && j == shape_.column_cores - 1;
    Role cut_rows = Role::Row;
    bool are_rows_cut = false;
    std::array<int64_t, 3> offset{};
    for (size_t dim = 0; dim < shape_.dims.size(); ++dim) {
      const auto [role, extent] = shape_.dims[dim];
      int64_t first = 0;
      int64_t end = extent;
      if (role == Role::Columns) {
        first = extent * j / shape_.column_cores;
        end = extent * (j + 1) / shape_.column_cores;
      } else if (role == cut_rows && !are_rows_cut) {
        are_rows_cut = true;
        first = extent * i / shape_.row_cores;
        end = extent * (i + 1) / shape_.row_cores;
      }
      core.extent[dim] = end - first;
      for (int k = 0; k < 3; ++k) offset[k] += first * operands_[k].stride[dim];
    }
    for (int k = 0; k < 3; ++k) {
      const bool has_copies = shape_.is_private && k != 1;
      core.operand[k].record = &operands_[k];
      core.operand[k].tiles = tiles(k);
      core.operand[k].address =
          start(k) + offset[k] + (has_copies ? size_[k] * (i * shape_.column_cores + j) : 0);
    }
    int mask = 0;
    if (shape_.lane_mask >= 0) core.mask[mask++] = {record_.lane_dim, shape_.lane_mask};
    for (size_t dim = 0; dim < shape_.dims.size() && shape_.depth_mask >= 0; ++dim) {
      if (shape_.dims[dim].role != Role::Depth) continue;
      core.mask[mask++] = {static_cast<uint8_t>(dim), shape_.depth_mask};
      break;
    }
    if (core.iterations() > 0) cores_.push_back(core);
  }

  void fill(int operand) {
    const DataFormat kind = format(operand);
    const int bytes = element_bytes(kind);
    std::normal_distribution<float> normal(0, 1);
    for (std::byte* at = start(operand);
         at + bytes <= memory_[operand].data() + memory_[operand].size(); at += bytes) {
      if (is_integer(kind)) {
        const auto byte = static_cast<uint8_t>(random_());
        std::memcpy(at, &byte, bytes);
        continue;
      }
      uint32_t word = encode_float(kind, normal(random_));
      if (shape_.is_wild && random_() % 64 == 0) word = static_cast<uint32_t>(random_());
      if (shape_.is_wild && random_() % 256 == 0) {
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        constexpr std::array kSpecial{kInfinity, -kInfinity, 0.0F, -0.0F,
                                      std::numeric_limits<float>::quiet_NaN()};
        word = encode_float(kind, kSpecial[random_() % kSpecial.size()]);
      }
      std::memcpy(at, &word, bytes);
    }
  }

  // The next index of the dimensions of k, or of the others.
  bool next(const CoreStep& core, std::vector<int64_t>& index, bool of_depth) const {
    for (int dim = record_.rank - 1; dim >= 0; --dim) {
      if (is_depth(shape_.dims[dim].role) != of_depth) continue;
      if (++index[dim] < core.extent[dim]) return true;
      index[dim] = 0;
    }
    return false;
  }

  bool counts(const CoreStep& core, const std::vector<int64_t>& index, int element) const {
    for (int i = 0; i < record_.masks; ++i) {
      const int64_t at = index[core.mask[i].dim];
      const bool is_lane_dim = core.mask[i].dim == record_.lane_dim;
      if ((is_lane_dim ? at * lanes_ + element : at) >= core.mask[i].count) return false;
    }
    return true;
  }

  const std::byte* at(const CoreStep& core, int operand, const std::vector<int64_t>& index) const {
    const std::byte* place = core.operand[operand].address;
    for (int dim = 0; dim < record_.rank; ++dim) {
      place += index[dim] * operands_[operand].stride[dim];
    }
    return place;
  }

  static float element(DataFormat format, const std::byte* stick, int index) {
    uint32_t bits = 0;
    std::memcpy(&bits, stick + index * element_bytes(format), element_bytes(format));
    return is_integer(format) ? static_cast<float>(decode_int(format, bits))
                              : decode_float(format, bits);
  }

  void multiply(const CoreStep& core, std::vector<int64_t>& index, int lane, Bytes& out) const {
    float sum = 0;
    do {
      for (int k = 0; k < lanes_; ++k) {
        if (!counts(core, index, k)) continue;
        const int own = elems_per_stick(shape_.a);
        const std::byte* stick = at(core, 0, index) + k / own * operands_[0].tile_stride;
        sum = std::fma(element(shape_.a, stick, k % own),
                       element(shape_.b, at(core, 1, index) + k * operands_[1].tile_stride, lane),
                       sum);
      }
    } while (next(core, index, true));
    const int c_lanes = elems_per_stick(shape_.c);
    const int tile = lane / c_lanes;
    const bool is_last = index[record_.stick_dim] == core.extent[record_.stick_dim] - 1;
    if (core.is_tail && is_last && tile >= operands_[2].tail_tiles) return;
    if (std::isnan(sum)) sum = std::numeric_limits<float>::quiet_NaN();  // the card has only one
    const uint32_t bits = encode_float(shape_.c, sum);
    const int64_t place = at(core, 2, index) - memory_[2].data() + tile * operands_[2].tile_stride +
                          lane % c_lanes * element_bytes(shape_.c);
    std::memcpy(out.data() + place, &bits, element_bytes(shape_.c));
  }

  Case shape_;
  std::mt19937_64 random_;
  int lanes_ = 0;
  StepRecord record_{};
  std::array<OperandRecord, 3> operands_{};
  std::array<int64_t, 3> size_{};
  std::array<Bytes, 3> memory_;
  std::vector<CoreStep> cores_;
};

std::vector<kernels::Isa> available_isas() {
  std::vector<kernels::Isa> isas;
  for (const auto isa : {kernels::Isa::Baseline, kernels::Isa::V3, kernels::Isa::V4}) {
    if (kernels::isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

// Runs the case on every ISA with 1, 2 and 5 threads and compares all bytes of C.
void check_case(const Case& shape, uint64_t seed = 1) {
  Bound bound(shape, seed);
  const Bytes expected = bound.expected();
  const kernels::Isa before = kernels::selected_isa();
  for (const kernels::Isa isa : available_isas()) {
    kernels::select_isa(isa);
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads);
      bound.reset();
      run_matmul(bound.cores(), threads == 1 ? nullptr : &pool);
      CHECK(bound.result() == expected);
    }
  }
  kernels::select_isa(before);
}

TEST(a_product_is_rounded_once_after_all_of_k_in_order) {
  check_case({{{Role::Row, 5}, {Role::Columns, 1}, {Role::DepthSticks, 1}}});
  check_case({{{Role::Row, 29}, {Role::Columns, 3}, {Role::DepthSticks, 2}}});
}

TEST(k_longer_than_a_block_carries_the_accumulators_on) {
  check_case({{{Role::Row, 3}, {Role::Columns, 2}, {Role::DepthSticks, 13}}});
  check_case({{{Role::Row, 40}, {Role::Columns, 2}, {Role::DepthSticks, 9}}});
  // Few rows keep 4096 elements of k at a time; this is more.
  check_case({{{Role::Row, 2}, {Role::Columns, 1}, {Role::DepthSticks, 70}}});
}

TEST(every_number_of_rows_gives_the_same_bits) {
  for (int64_t rows = 1; rows <= 34; ++rows) {
    check_case({{{Role::Columns, 1}, {Role::Row, rows}, {Role::DepthSticks, 1}}}, rows);
  }
}

TEST(rows_spread_over_the_cores_are_multiplied_as_one) {
  Case shape{{{Role::Row, 37}, {Role::Columns, 2}, {Role::DepthSticks, 2}}};
  shape.row_cores = 8;
  check_case(shape);
  shape.column_cores = 2;
  check_case(shape);
}

TEST(columns_spread_over_the_cores_share_the_rows) {
  Case shape{{{Role::Columns, 5}, {Role::Row, 6}, {Role::DepthSticks, 3}}};
  shape.column_cores = 4;
  check_case(shape);
}

TEST(operands_in_the_scratchpads_of_the_cores_are_not_shared) {
  Case shape{{{Role::Columns, 4}, {Role::Row, 9}, {Role::DepthSticks, 2}}};
  shape.is_private = true;
  shape.row_cores = 3;
  shape.column_cores = 2;
  check_case(shape);
}

TEST(batches_have_matrices_of_their_own) {
  Case shape{{{Role::Batch, 3},
              {Role::Row, 4},
              {Role::Batch, 2},
              {Role::Columns, 2},
              {Role::Row, 3},
              {Role::DepthSticks, 2}}};
  check_case(shape);
  shape.a_stands_still = true;
  check_case(shape);
}

TEST(two_dimensions_of_k_run_in_iteration_order) {
  check_case({{{Role::Depth, 3}, {Role::Row, 7}, {Role::DepthSticks, 2}, {Role::Columns, 2}}});
  check_case({{{Role::Depth, 9},
               {Role::Depth, 2},
               {Role::Columns, 1},
               {Role::DepthSticks, 1},
               {Role::Row, 20}}});
}

TEST(masked_elements_of_k_are_neither_read_nor_multiplied) {
  Case shape{{{Role::Row, 7}, {Role::Columns, 1}, {Role::DepthSticks, 6}}};
  shape.is_wild = true;  // a NaN beyond the mask must not reach the result
  for (const int64_t count : {0, 1, 63, 64, 65, 300, 384, 1000}) {
    shape.lane_mask = count;
    check_case(shape);
  }
}

TEST(masks_along_both_dimensions_of_k_meet) {
  Case shape{{{Role::Depth, 4}, {Role::Row, 18}, {Role::Columns, 1}, {Role::DepthSticks, 3}}};
  shape.depth_mask = 3;
  shape.lane_mask = 77;
  check_case(shape);
  shape.depth_mask = 0;
  check_case(shape);
}

TEST(fp32_results_of_16_bit_operands_take_two_sticks) {
  Case shape{{{Role::Row, 6}, {Role::Columns, 3}, {Role::DepthSticks, 2}}};
  shape.c = DataFormat::IEEE_FP32;
  check_case(shape);
  shape.has_tail = true;
  check_case(shape);
  shape.column_cores = 2;
  check_case(shape);
}

TEST(every_float_format_multiplies) {
  for (const DataFormat format :
       {DataFormat::IEEE_FP32, DataFormat::IEEE_FP16, DataFormat::BFLOAT16, DataFormat::SEN143_FP8,
        DataFormat::SEN152_FP8, DataFormat::SEN18F_FP24}) {
    for (const int64_t rows : {2, 30}) {
      Case shape{{{Role::Row, rows}, {Role::Columns, 2}, {Role::DepthSticks, 10}}};
      shape.a = shape.b = shape.c = format;
      check_case(shape);
    }
  }
}

// B has 128 elements per stick; of A an iteration takes two sticks or four, of C as many.
TEST(rows_of_more_bits_meet_columns_of_8_bits) {
  for (const DataFormat b : {DataFormat::SEN143_FP8, DataFormat::SEN152_FP8, DataFormat::SENINT8}) {
    for (const DataFormat a : {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32,
                               DataFormat::SEN143_FP8, DataFormat::SEN152_FP8}) {
      for (const DataFormat c :
           {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32, DataFormat::SEN143_FP8}) {
        for (const int64_t rows : {1, 7, 30}) {
          Case shape{{{Role::Row, rows}, {Role::Columns, 2}, {Role::DepthSticks, 3}}};
          shape.a = a;
          shape.b = b;
          shape.c = c;
          check_case(shape);
        }
      }
    }
  }
}

TEST(a_mask_ends_k_inside_any_stick_of_an_iteration) {
  Case shape{{{Role::Row, 5}, {Role::Columns, 2}, {Role::Depth, 2}, {Role::DepthSticks, 4}}};
  shape.is_wild = true;  // a NaN beyond the mask must not reach the result
  shape.b = DataFormat::SENINT8;
  shape.c = DataFormat::IEEE_FP32;
  for (const DataFormat a : {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32}) {
    shape.a = a;
    for (const int64_t count : {0, 1, 31, 32, 63, 64, 65, 127, 128, 200, 320, 500}) {
      shape.lane_mask = count;
      check_case(shape);
    }
  }
}

TEST(a_result_of_32_bits_has_up_to_four_sticks_for_8_bit_columns) {
  Case shape{{{Role::Row, 6}, {Role::Columns, 3}, {Role::DepthSticks, 2}}};
  shape.a = shape.b = DataFormat::SEN143_FP8;
  shape.c = DataFormat::IEEE_FP32;
  shape.has_tail = true;
  check_case(shape);
  shape.column_cores = 2;
  shape.row_cores = 3;
  check_case(shape);
}

TEST(infinities_nan_and_tiny_numbers_give_the_same_bits_everywhere) {
  for (const DataFormat format : {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32,
                                  DataFormat::BFLOAT16, DataFormat::SEN152_FP8}) {
    for (const int64_t rows : {1, 8, 20}) {
      Case shape{{{Role::Row, rows}, {Role::Columns, 3}, {Role::DepthSticks, 2}}};
      shape.a = shape.b = shape.c = format;
      shape.is_wild = true;
      for (uint64_t seed = 0; seed < 6; ++seed) check_case(shape, seed);
    }
  }
  for (const DataFormat b : {DataFormat::SEN143_FP8, DataFormat::SEN152_FP8, DataFormat::SENINT8}) {
    for (const int64_t rows : {1, 8, 20}) {
      Case shape{{{Role::Row, rows}, {Role::Columns, 1}, {Role::DepthSticks, 1}}};
      shape.b = b;
      shape.c = DataFormat::IEEE_FP32;
      shape.is_wild = true;
      for (uint64_t seed = 0; seed < 6; ++seed) check_case(shape, seed);
    }
  }
}

// One row of a single 1 picks a row of B: every code of 8 bits, as the format has it.
TEST(few_rows_and_many_widen_every_code_of_8_bits_alike) {
  const kernels::Isa before = kernels::selected_isa();
  std::vector<std::byte> codes(2 * kStickBytes);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
  const auto one = std::bit_cast<uint32_t>(1.0F);
  for (const kernels::Isa isa : available_isas()) {
    kernels::select_isa(isa);
    for (const DataFormat format :
         {DataFormat::SEN143_FP8, DataFormat::SEN152_FP8, DataFormat::SENINT8}) {
      std::vector<kernels::Word> widened(codes.size()), streamed(codes.size());
      const auto index = static_cast<size_t>(format);
      kernels::table().load_factor[index](codes.data(), widened.data(), 256);
      for (int code = 0; code < 256; ++code) {
        const float wanted = format == DataFormat::SENINT8
                                 ? static_cast<float>(decode_int(format, code))
                                 : decode_float(format, code);
        const auto found = std::bit_cast<float>(widened[code]);
        CHECK(found == wanted || (std::isnan(found) && std::isnan(wanted)));
      }
      if (kernels::table().stream[index] == nullptr) continue;
      for (int half = 0; half < 2; ++half) {
        kernels::table().stream[index]({.a = &one,
                                        .b = nullptr,
                                        .c = streamed.data() + half * kStickBytes,
                                        .b_stride = kStickBytes,
                                        .k = 1,
                                        .rows = 1,
                                        .columns = kStickBytes,
                                        .is_first = true,
                                        .is_last = true},
                                       codes.data() + half * kStickBytes);
      }
      for (int code = 0; code < 256; ++code) {
        const auto sum = std::bit_cast<float>(streamed[code]);
        const auto wanted = std::bit_cast<float>(widened[code]);
        CHECK(sum == wanted || (std::isnan(sum) && std::isnan(wanted)));
      }
    }
  }
  kernels::select_isa(before);
}

// Sums that lie so close to the middle between two fp32 numbers that double takes them for it: an
// addition in double and a second rounding would go the wrong way. Random operands don't find them.
TEST(a_sum_that_double_would_round_twice_is_rounded_once) {
  struct Near {
    float start, a, b, sum;
  };
  const float above = (32513 * 0x1p-27F);  // times 33025 * 2^-27 is 2^-24 + 2^-54
  const std::array<Near, 4> cases{{
      {1.0F, 33025 * 0x1p-27F, above, 1.0F + 0x1p-23F},
      {-1.0F, -33025 * 0x1p-27F, above, -1.0F - 0x1p-23F},
      // 2^-24 - 2^-54, which the even neighbour must not attract
      {1.0F + 0x1p-23F, 0x1p-24F * (1 + 0x1p-15F), 1 - 0x1p-15F, 1.0F + 0x1p-23F},
      {-1.0F - 0x1p-23F, 0x1p-24F * (1 + 0x1p-15F), -1 + 0x1p-15F, -1.0F - 0x1p-23F},
  }};
  constexpr int kColumns = 32;
  const kernels::Isa before = kernels::selected_isa();
  for (const kernels::Isa isa : available_isas()) {
    kernels::select_isa(isa);
    for (const Near& near : cases) {
      std::vector<kernels::Word> a{std::bit_cast<uint32_t>(1.0F), std::bit_cast<uint32_t>(near.a)};
      std::vector<kernels::Word> b(2 * kColumns, std::bit_cast<uint32_t>(near.b));
      std::fill_n(b.begin(), kColumns, std::bit_cast<uint32_t>(near.start));
      std::vector<kernels::Word> c(kColumns);
      kernels::table().multiply(
          {a.data(), b.data(), c.data(), kColumns, 2, 1, kColumns, true, true});
      for (const kernels::Word word : c) CHECK_EQ(std::bit_cast<float>(word), near.sum);
    }
  }
  kernels::select_isa(before);
}

TEST(any_step_agrees_with_the_definition) {
  std::mt19937_64 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    Case shape;
    for (int n = pick(0, 2); n > 0; --n) shape.dims.push_back({Role::Batch, pick(1, 3)});
    for (int n = pick(1, 2); n > 0; --n) shape.dims.push_back({Role::Row, pick(1, 9)});
    for (int n = pick(0, 1); n > 0; --n) shape.dims.push_back({Role::Depth, pick(1, 3)});
    shape.dims.push_back({Role::Columns, pick(1, 4)});
    std::shuffle(shape.dims.begin(), shape.dims.end(), random);
    // The sticks of k come after the other dimensions of k.
    size_t earliest = 0;
    for (size_t dim = 0; dim < shape.dims.size(); ++dim) {
      if (shape.dims[dim].role == Role::Depth) earliest = dim + 1;
    }
    const int place = pick(static_cast<int>(earliest), static_cast<int>(shape.dims.size()));
    shape.dims.insert(shape.dims.begin() + place, {Role::DepthSticks, pick(1, 3)});
    shape.row_cores = pick(1, 3);
    shape.column_cores = pick(1, 3);
    shape.is_private = pick(0, 3) == 0;
    shape.is_wild = pick(0, 3) == 0;
    shape.a_stands_still = pick(0, 3) == 0;
    if (pick(0, 2) == 0) shape.lane_mask = pick(0, 200);
    if (pick(0, 2) == 0) shape.c = DataFormat::IEEE_FP32;
    if (pick(0, 2) == 0) shape.b = pick(0, 1) == 0 ? DataFormat::SENINT8 : DataFormat::SEN143_FP8;
    check_case(shape, random());
  }
}

// In a loop: rows go to the scratchpads of four cores, are multiplied there by a matrix in device
// memory, and the negated results go back. The product needs what the step before it wrote, and the
// step after it needs the product.
TEST(a_matmul_in_a_loop_stands_between_the_steps_around_it) {
  constexpr int64_t kLoops = 3, kRowsPerCore = 5, kCoreCount = 4, kValid = 50;
  constexpr int64_t kRows = kRowsPerCore * kCoreCount, kLanes = 64, kSlice = kRowsPerCore * 128;
  const auto format = DataFormat::SEN169_FP16;
  spyre::testing::ProgramBuilder builder;
  std::vector<int64_t> bases;
  for (int64_t core = 0; core < kCoreCount; ++core) bases.push_back(core * kSlice);
  const uint32_t a = builder.address(kLoops * kRows * 128);
  const uint32_t b = builder.address(kLanes * 128);
  const uint32_t c = builder.address(kLoops * kRows * 128, true);
  OperandRecord from = builder.device(a, format, {128}, bases);
  OperandRecord to = builder.device(c, format, {128}, bases);
  from.loop_stride[0] = to.loop_stride[0] = kRows * 128;
  const auto lx = [&](int64_t base, const std::vector<int64_t>& stride) {
    return builder.operand(Space::Lx, 0, format, Lanes::Vector, {base}, stride);
  };
  OperandRecord matrix = builder.device(b, format, {0, 0, 0});
  matrix.tile_stride = 128;
  const uint32_t cores = 0x00010203;
  const uint32_t load = builder.step(Opcode::identity, cores, {kRowsPerCore}, {from}, lx(0, {128}));
  const uint32_t product =
      builder.step(Opcode::batchmatmul, cores, {kRowsPerCore, 1, 1}, {lx(0, {128, 0, 0}), matrix},
                   lx(8192, {128, 0, 0}), StepKind::Matmul);
  builder.steps[product].stick_dim = 1;
  builder.steps[product].lane_dim = 2;
  builder.steps[product].reduced = 4;
  builder.mask(2, kValid);
  const uint32_t store = builder.step(Opcode::neg, cores, {kRowsPerCore}, {lx(8192, {128})}, to);
  builder.loop(kLoops, 3);
  for (const uint32_t step : {load, product, store}) builder.run(step);

  const auto program = load_program(builder.bytes());
  const int64_t b_at = kLoops * kRows * 128, c_at = b_at + kLanes * 128;
  std::vector<std::byte> memory(c_at + kLoops * kRows * 128);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 1);
  const auto element = [&](int64_t place) {
    uint16_t bits = 0;
    std::memcpy(&bits, memory.data() + place, 2);
    return decode_float(format, bits);
  };
  for (int64_t place = 0; place < c_at; place += 2) {
    const auto bits = static_cast<uint16_t>(encode_float(format, normal(random)));
    std::memcpy(memory.data() + place, &bits, 2);
  }
  const std::vector<Binding> bindings{
      {0, b_at}, {static_cast<uint64_t>(b_at), kLanes * 128}, {static_cast<uint64_t>(c_at), b_at}};
  for (const int threads : {1, 2, 5}) {
    std::fill(memory.begin() + c_at, memory.end(), std::byte{0xAB});
    ThreadPool pool(threads);
    Executor(pool).run(*program, bindings, memory.data());
    for (int64_t row = 0; row < kLoops * kRows; ++row) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        float sum = 0;
        for (int64_t k = 0; k < kValid; ++k) {
          sum = std::fma(element(row * 128 + k * 2), element(b_at + k * 128 + lane * 2), sum);
        }
        const float wanted = -decode_float(format, encode_float(format, sum));
        CHECK_EQ(element(c_at + row * 128 + lane * 2), wanted);
      }
    }
  }
}

}  // namespace
