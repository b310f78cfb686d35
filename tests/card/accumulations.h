// Random valid Reduction, Matmul and Gather steps, with an interpreter for them that goes element
// by element and shares nothing with the card but the codecs; and random chains of Pointwise steps.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <vector>

#include "../../torch_spyre/csrc/card/driver.h"
#include "../../torch_spyre/csrc/card/program.h"
#include "programs.h"

namespace spyre::testing {

class RandomAccumulations : public RandomPrograms {
 public:
  using RandomPrograms::RandomPrograms;

  ProgramBuilder reduction() {
    ProgramBuilder builder;
    add_reduction(builder);
    return builder;
  }
  ProgramBuilder matmul() {
    ProgramBuilder builder;
    add_matmul(builder);
    return builder;
  }
  // The same, cut over rings of cores. Every partner has its own place for the results, or all one.
  ProgramBuilder ring_reduction() {
    ProgramBuilder builder;
    do {
      builder = reduction();
    } while (!form_rings(builder));
    return builder;
  }
  ProgramBuilder ring_matmul() {
    ProgramBuilder builder;
    do {
      builder = matmul();
    } while (!form_rings(builder));
    return builder;
  }
  // Pointwise steps that run block by block: y0 = -x, y1 = y0 + x, y2 = y1 * y0, ...
  ProgramBuilder chain() {
    ProgramBuilder builder;
    const Shape shape = [&] {
      Shape picked = pick_walked_shape(1, 3, 4);
      picked.loops.clear();
      picked.extent.resize(1);
      return picked;
    }();
    const DataFormat format = pick_format(true);
    OperandRecord x = make(Space::Device, format, Lanes::Vector);
    place(builder, shape, x, kStickBytes, false, false);
    std::vector<OperandRecord> results;
    const int steps = pick(2, 4);
    for (int i = 0; i < steps; ++i) {
      const bool is_last = i == steps - 1;
      const bool is_lx = !is_last && pick(0, 3) != 0;
      OperandRecord y = make(is_lx ? Space::Lx : Space::Device, format, Lanes::Vector);
      place(builder, shape, y, kStickBytes, true, is_lx);
      constexpr int64_t kApart = 64 * 1024;
      if (is_lx) builder.bases[y.base] = i * kApart;
      std::vector<OperandRecord> inputs{i == 0 ? x : results.back()};
      if (i > 0) inputs.push_back(i == 1 ? x : results[pick(0, i - 1)]);
      const Opcode opcode = i == 0 ? Opcode::neg : i % 2 == 1 ? Opcode::add : Opcode::mul;
      const uint32_t step = builder.step(opcode, shape.cores, shape.extent[0], inputs, y);
      if (i > 0) builder.steps[step].flags |= kChained;
      if (is_lx && pick(0, 1) == 0) builder.steps[step].flags |= kDiscarded;
      builder.run(step);
      results.push_back(y);
    }
    return builder;
  }
  ProgramBuilder gather() {
    ProgramBuilder builder;
    add_gather(builder);
    return builder;
  }

 protected:
  bool form_rings(ProgramBuilder& builder) {
    StepRecord& step = builder.steps[0];
    const int cores = std::popcount(step.cores);
    std::vector<int> sizes;
    for (int size = 2; size <= cores; ++size) {
      if (cores % size == 0) sizes.push_back(size);
    }
    if (sizes.empty()) return false;
    const int size = sizes[pick(0, static_cast<int>(sizes.size()) - 1)];
    step.ring = static_cast<uint8_t>(size);
    for (uint32_t slot = 0; slot < step.extent_count; ++slot) {
      int64_t* const row = builder.extents.data() + step.extent + slot * step.rank;
      const int64_t* const first = row - static_cast<int64_t>(slot) % size * step.rank;
      for (int dim = 0; dim < step.rank; ++dim) {
        row[dim] = std::max<int64_t>(1, (step.reduced >> dim & 1) != 0 ? row[dim] : first[dim]);
      }
    }
    const bool has_one_place = pick(0, 1) == 0;
    const OperandRecord& output = builder.operands[step.first_operand + step.inputs];
    uint32_t first_core = 0;
    for (int core = 0, slot = 0; core < kCores; ++core) {
      if ((step.cores >> core & 1) == 0) continue;
      if (slot % size == 0) first_core = core;
      int64_t& base = builder.bases[output.base + slot];
      if (has_one_place) base = builder.bases[output.base + slot / size * size];
      const uint32_t is_tail = step.tail_cores >> first_core & 1;
      step.tail_cores = (step.tail_cores & ~(uint32_t{1} << core)) | is_tail << core;
      ++slot;
    }
    return true;
  }

  Shape pick_walked_shape(int low, int high, int most) {
    Shape shape = pick_shape();
    const int rank = pick(low, high);
    for (size_t row = 0; row < shape.extent.size(); ++row) {
      shape.extent[row].resize(rank);
      for (int64_t& extent : shape.extent[row]) extent = pick(row == 0 ? 1 : 0, most);
    }
    return shape;
  }

  void add_reduction(ProgramBuilder& builder) {
    static constexpr std::pair<Opcode, bool> kOperations[] = {
        {Opcode::sum, true},        {Opcode::mean, true},      {Opcode::amax, true},
        {Opcode::amin, true},       {Opcode::prod, true},      {Opcode::sum_int, false},
        {Opcode::amax_int, false},  {Opcode::amin_int, false}, {Opcode::prod_int, false},
        {Opcode::sum_squares, true}};
    const auto& [opcode, is_float] = kOperations[pick(0, std::size(kOperations) - 1)];
    Shape shape = pick_walked_shape(1, 4, pick(0, 3) == 0 ? 40 : 4);
    const int rank = static_cast<int>(shape.extent[0].size());
    if (shape.largest(0) > 4) {
      shape.extent.resize(1);
      for (int dim = 1; dim < rank; ++dim) shape.extent[0][dim] = pick(1, 2);
    }
    const auto reduced = static_cast<uint32_t>(pick(1, (1 << rank) - 1));
    const int stick_dim = pick(0, 3) == 0 ? kNoStickDim : pick(0, rank - 1);
    const bool reduces_stick = stick_dim != kNoStickDim && (reduced >> stick_dim & 1) != 0;
    const Lanes lanes = pick(0, 4) == 0 ? Lanes::First : Lanes::Vector;
    OperandRecord input = make(Space::Device, pick_format(is_float), lanes);
    OperandRecord output =
        make(Space::Device, pick_format(is_float), reduces_stick ? Lanes::First : Lanes::Vector);
    const auto per_stick = [](const OperandRecord& record) {
      return record.lanes != 0 ? 1 : elems_per_stick(static_cast<DataFormat>(record.format));
    };
    shape.lanes = std::max(per_stick(input), per_stick(output));
    const bool has_tail = stick_dim != kNoStickDim && pick(0, 1) == 0;
    for (OperandRecord* record : {&input, &output}) {
      const int tiles = record->lanes != 0 ? 1 : shape.lanes / per_stick(*record);
      if (has_tail && tiles > 1) record->tail_tiles = static_cast<uint8_t>(pick(0, tiles));
      const bool is_output = record == &output;
      place(builder, shape, *record, tiles * kStickBytes, is_output, false,
            is_output ? reduced : 0);
    }
    std::vector<OperandRecord> inputs{input};
    if (opcode == Opcode::mean) {
      inputs.push_back(make(Space::Constant, DataFormat::IEEE_FP32, Lanes::Vector));
      inputs.back().symbol =
          builder.constant(std::bit_cast<uint32_t>(static_cast<float>(pick(1, 9))));
    }
    const uint32_t step =
        builder.step(opcode, shape.cores, shape.extent[0], inputs, output, StepKind::Reduction);
    builder.steps[step].reduced = static_cast<uint8_t>(reduced);
    builder.steps[step].stick_dim = static_cast<uint8_t>(stick_dim);
    if (has_tail) builder.steps[step].tail_cores = shape.cores & static_cast<uint32_t>(bits());
    finish(builder, shape, step);
    add_masks(builder, shape, reduced, stick_dim);
  }

  // Masks on some of the accumulated dimensions; positions along `lane_dim` count elements.
  void add_masks(ProgramBuilder& builder, const Shape& shape, uint32_t reduced, int lane_dim) {
    for (int dim = 0; dim < static_cast<int>(shape.extent[0].size()); ++dim) {
      if ((reduced >> dim & 1) == 0 || pick(0, 1) == 0 || builder.steps.back().masks == 4) continue;
      const int unit = dim == lane_dim ? shape.lanes : 1;
      const int valid = pick(0, static_cast<int>(shape.largest(dim)) * unit + 3);
      std::vector<int64_t> bases(pick(0, 1) == 0 ? 1 : std::popcount(shape.cores));
      for (int64_t& base : bases) base = pick(0, 2) == 0 ? pick(-5, 20) : 0;
      const bool is_symbol = pick(0, 3) == 0;
      const int64_t length = is_symbol ? builder.extent(valid) : valid;
      MaskRecord& mask = builder.mask(static_cast<uint8_t>(dim), length, bases, is_symbol);
      for (size_t depth = 0; depth < shape.loops.size(); ++depth) {
        mask.loop_stride[depth] = pick(-3, 3) * unit / 2;
      }
    }
  }

  void add_matmul(ProgramBuilder& builder) {
    Shape shape = pick_walked_shape(2, 4, 2);
    const int rank = static_cast<int>(shape.extent[0].size());
    const int stick_dim = pick(0, rank - 1);
    const int lane_dim = (stick_dim + pick(1, rank - 1)) % rank;
    uint32_t reduced = uint32_t{1} << lane_dim;
    for (int dim = 0; dim < lane_dim; ++dim) {
      if (dim != stick_dim && pick(0, 2) == 0) reduced |= uint32_t{1} << dim;
    }
    // B has the most elements per stick, or as many as the others.
    static constexpr DataFormat kFloats[] = {DataFormat::IEEE_FP32,  DataFormat::SEN169_FP16,
                                             DataFormat::IEEE_FP16,  DataFormat::BFLOAT16,
                                             DataFormat::SEN143_FP8, DataFormat::SEN152_FP8};
    const bool is_integer = pick(0, 5) == 0;
    const int most = pick(0, 5);
    const DataFormat of_b = is_integer ? DataFormat::SENINT8 : kFloats[most];
    shape.lanes = elems_per_stick(of_b);
    const auto pick_float = [&] {
      DataFormat format;
      do {
        format = kFloats[pick(0, 5)];
      } while (elems_per_stick(format) > shape.lanes);
      return format;
    };
    OperandRecord a = make(Space::Device, pick_float(), Lanes::Vector);
    OperandRecord b = make(Space::Device, of_b, Lanes::Vector);
    OperandRecord c = make(Space::Device, pick_float(), Lanes::Vector);
    const int a_tiles = shape.lanes / elems_per_stick(static_cast<DataFormat>(a.format));
    const int tiles = shape.lanes / elems_per_stick(static_cast<DataFormat>(c.format));
    if (tiles > 1) c.tail_tiles = static_cast<uint8_t>(pick(0, tiles));
    place(builder, shape, a, a_tiles * kStickBytes, false, false, uint32_t{1} << stick_dim);
    place(builder, shape, b, shape.lanes * kStickBytes, false, false);
    place(builder, shape, c, tiles * kStickBytes, true, false, reduced);
    const Opcode opcode = is_integer ? Opcode::batchmatmul_int8 : Opcode::batchmatmul;
    const uint32_t step =
        builder.step(opcode, shape.cores, shape.extent[0], {a, b}, c, StepKind::Matmul);
    StepRecord& record = builder.steps[step];
    record.reduced = static_cast<uint8_t>(reduced);
    record.stick_dim = static_cast<uint8_t>(stick_dim);
    record.lane_dim = static_cast<uint8_t>(lane_dim);
    if (tiles > 1) record.tail_cores = shape.cores & static_cast<uint32_t>(bits());
    finish(builder, shape, step);
    add_masks(builder, shape, reduced, lane_dim);
  }

  void add_gather(ProgramBuilder& builder) {
    const Shape picked = pick_walked_shape(1, 4, pick(0, 3) == 0 ? 9 : 3);
    Shape shape = picked;
    const bool is_float = pick(0, 1) == 0;
    const DataFormat format = pick_format(is_float);
    shape.lanes = elems_per_stick(format);
    OperandRecord table = make(Space::Device, format, Lanes::Vector);
    OperandRecord index = make(Space::Device, DataFormat::IEEE_INT32, Lanes::Element);
    DataFormat result = pick(0, 1) == 0 ? format : pick_format(is_float);
    if (elems_per_stick(result) > shape.lanes) result = format;
    OperandRecord output = make(Space::Device, result, Lanes::Vector);
    const int rows = pick(1, 9);
    const int tiles = shape.lanes / elems_per_stick(result);
    place(builder, shape, table, rows * kStickBytes, false, false);
    place(builder, shape, index, 4, false, false);
    place(builder, shape, output, tiles * kStickBytes, true, false);
    const uint32_t step = builder.step(is_float ? Opcode::gather : Opcode::gather_int, shape.cores,
                                       shape.extent[0], {table, index}, output, StepKind::Gather);
    finish(builder, shape, step);
    const bool is_symbol = pick(0, 3) == 0;
    builder.mask(kNoStickDim, is_symbol ? builder.extent(rows) : rows, {0}, is_symbol);
  }
};

// Runs Reduction, Matmul and Gather steps below any loops.
class AccumulationModel {
 public:
  virtual ~AccumulationModel() = default;
  AccumulationModel(const Program& program, std::vector<Binding> bindings,
                    std::vector<std::byte>& memory)
      : program_(program), bindings_(std::move(bindings)), memory_(memory) {}

  void run() { run_nodes(0, program_.nodes.size()); }

 protected:
  using Point = std::vector<int64_t>;

  void run_nodes(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const NodeRecord& node = program_.nodes[i];
      if (node.kind == static_cast<uint32_t>(NodeKind::Step)) {
        run_step(program_.steps[node.step]);
        continue;
      }
      loops_.push_back(0);
      for (uint32_t n = 0; n < node.count; ++n) {
        loops_.back() = n;
        run_nodes(i + 1, i + 1 + node.size);
      }
      loops_.pop_back();
      i += node.size;
    }
  }

  void run_step(const StepRecord& step) {
    step_ = &step;
    lanes_ = 1;
    for (int i = 0; i <= step.inputs; ++i) {
      const OperandRecord& record = operand(i);
      if (record.space <= 1 && record.lanes == 0) lanes_ = std::max(lanes_, per_stick(record));
    }
    std::vector<int> cores;
    for (int core = 0; core < kCores; ++core) {
      if ((step.cores >> core & 1) != 0) cores.push_back(core);
    }
    const int ring = std::max<int>(1, step.ring);
    for (size_t first = 0; first < cores.size(); first += ring) {
      partials_.clear();
      is_giving_ = ring == 1;
      for (int i = 0; i < ring; ++i) run_core(cores[first + i], static_cast<int>(first) + i);
      is_giving_ = true;
      for (int i = 0; i < ring && ring > 1; ++i) {
        run_core(cores[first + i], static_cast<int>(first) + i);
      }
    }
  }

  void run_core(int core, int slot) {
    const StepRecord& step = *step_;
    core_ = core;
    slot_ = slot;
    extent_.assign(step.rank, 0);
    for (int dim = 0; dim < step.rank; ++dim) {
      const int row = step.extent_count == 1 ? 0 : slot_;
      extent_[dim] = program_.extents[step.extent + row * step.rank + dim];
    }
    Point point(step.rank, 0);
    if (std::find(extent_.begin(), extent_.end(), 0) == extent_.end()) run_kept(0, point);
  }

  // For every point of the dimensions that are kept.
  void run_kept(int dim, Point& point) {
    if (dim == step_->rank) return run_point(point);
    if ((step_->reduced >> dim & 1) != 0) return run_kept(dim + 1, point);
    for (point[dim] = 0; point[dim] < extent_[dim]; ++point[dim]) run_kept(dim + 1, point);
    point[dim] = 0;
  }

  virtual void run_point(Point& point) {
    switch (static_cast<StepKind>(step_->kind)) {
      case StepKind::Reduction:
      case StepKind::Matmul:
        return accumulate(point);
      case StepKind::Gather:
        return gather(point);
      default:
        throw std::logic_error("not a kind that this model knows");
    }
  }

  // For every point of those that are accumulated, in their order.
  template <typename Body>
  void for_each_reduced(int dim, Point& point, Body body) {
    if (dim == step_->rank) return body(point);
    if ((step_->reduced >> dim & 1) == 0) return for_each_reduced(dim + 1, point, body);
    for (point[dim] = 0; point[dim] < extent_[dim]; ++point[dim]) {
      for_each_reduced(dim + 1, point, body);
    }
    point[dim] = 0;
  }

  bool is_valid(const Point& point, int lane) const {
    const int lane_dim =
        step_->kind == static_cast<uint8_t>(StepKind::Matmul) ? step_->lane_dim : step_->stick_dim;
    for (int i = 0; i < step_->masks; ++i) {
      const MaskRecord& mask = program_.masks[step_->first_mask + i];
      if (mask.dim == kNoStickDim) continue;
      int64_t position = point[mask.dim];
      if (mask.dim == lane_dim) position = position * lanes_ + lane;
      if (position + start_of(mask) >= length_of(mask)) return false;
    }
    return true;
  }

  int64_t length_of(const MaskRecord& mask) const {
    return mask.is_symbol != 0 ? static_cast<int64_t>(bindings_[mask.valid].value)
                               : program_.extents[mask.valid];
  }
  int64_t start_of(const MaskRecord& mask) const {
    int64_t start = program_.bases[mask.base + (mask.base_count == 1 ? 0 : slot_)];
    for (size_t i = 0; i < loops_.size(); ++i) start += loops_[i] * mask.loop_stride[i];
    return start;
  }

  // ---- The three kinds -------------------------------------------------------------------------

  // The partners of a ring first collect what each of them has, then each gives the whole.
  void accumulate(Point& point) {
    const bool is_matmul = step_->kind == static_cast<uint8_t>(StepKind::Matmul);
    if (step_->ring == 0 || !is_giving_) {
      const std::vector<uint32_t> own = is_matmul ? multiply(point) : reduce(point);
      const auto [place, is_first] = partials_.try_emplace(point, own);
      for (int lane = 0; lane < lanes_ && !is_first; ++lane) {
        place->second[lane] = combine(place->second[lane], own[lane]);
      }
    }
    if (is_giving_) is_matmul ? write_lanes(point, partials_.at(point)) : give(point);
    if (step_->ring == 0) partials_.clear();
  }

  void write_lanes(const Point& point, const std::vector<uint32_t>& words) {
    for (int lane = 0; lane < lanes_; ++lane) write(point, lane, words[lane]);
  }

  std::vector<uint32_t> reduce(Point& point) {
    std::vector<uint32_t> sums(lanes_, neutral());
    for_each_reduced(0, point, [&](const Point& at) {
      for (int lane = 0; lane < lanes_; ++lane) {
        if (is_valid(at, lane)) sums[lane] = combine(sums[lane], taken_in(read(0, at, lane)));
      }
    });
    return sums;
  }

  void give(const Point& point) {
    std::vector<uint32_t> sums = partials_.at(point);
    const bool is_first = operand(step_->inputs).lanes == static_cast<uint8_t>(Lanes::First);
    for (int half = lanes_ / 2; is_first && half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) {
        sums[lane] = combine(sums[lane], sums[lane + half]);
      }
    }
    if (step_->opcode == static_cast<uint16_t>(Opcode::mean)) {
      const float count = std::bit_cast<float>(program_.constants[operand(1).symbol]);
      for (uint32_t& sum : sums) {
        sum = std::bit_cast<uint32_t>(std::bit_cast<float>(sum) / count);
      }
    }
    if (!is_first) return write_lanes(point, sums);
    std::memset(address(step_->inputs, point, 0), 0, kStickBytes);
    write(point, 0, sums[0]);
  }

  std::vector<uint32_t> multiply(Point& point) {
    std::vector<uint32_t> sums(lanes_);
    for (int column = 0; column < lanes_; ++column) {
      float sum = 0;
      for_each_reduced(0, point, [&](const Point& at) {
        for (int k = 0; k < lanes_; ++k) {
          if (!is_valid(at, k)) continue;
          const float a = std::bit_cast<float>(read(0, at, k));
          const std::byte* row = address(1, at, column) + k * operand(1).tile_stride;
          const uint32_t word = decode(row, operand(1));
          const bool is_integer = step_->opcode == static_cast<uint16_t>(Opcode::batchmatmul_int8);
          const float b = is_integer ? static_cast<float>(static_cast<int32_t>(word))
                                     : std::bit_cast<float>(word);
          sum = std::fma(a, b, sum);
        }
      });
      sums[column] = std::bit_cast<uint32_t>(sum);
    }
    return sums;
  }

  void gather(const Point& point) {
    const int64_t index = static_cast<int32_t>(read(1, point, 0));
    const int64_t rows = length_of(program_.masks[step_->first_mask]);
    if (index < 0 || index >= rows) throw std::out_of_range(std::to_string(index));
    for (int lane = 0; lane < lanes_; ++lane) {
      const std::byte* row = address(0, point, lane) + index * operand(0).tile_stride;
      if (operand(0).format == operand(2).format) {
        std::memcpy(address(2, point, lane), row,
                    element_bytes(static_cast<DataFormat>(operand(0).format)));
      } else {
        write_bits(point, lane, decode(row, operand(0)));
      }
    }
  }

  uint32_t neutral() const {
    switch (static_cast<Opcode>(step_->opcode)) {
      case Opcode::amax:
        return std::bit_cast<uint32_t>(-INFINITY);
      case Opcode::amin:
        return std::bit_cast<uint32_t>(INFINITY);
      case Opcode::prod:
        return std::bit_cast<uint32_t>(1.0F);
      case Opcode::amax_int:
        return 0x80000000;
      case Opcode::amin_int:
        return 0x7FFFFFFF;
      case Opcode::prod_int:
        return 1;
      default:
        return 0;
    }
  }

  uint32_t taken_in(uint32_t element) const {
    const auto x = std::bit_cast<float>(element);
    const bool is_squared = step_->opcode == static_cast<uint16_t>(Opcode::sum_squares);
    return is_squared ? std::bit_cast<uint32_t>(x * x) : element;
  }

  uint32_t combine(uint32_t left, uint32_t right) const {
    const auto a = std::bit_cast<float>(left), b = std::bit_cast<float>(right);
    const auto i = static_cast<int32_t>(left), k = static_cast<int32_t>(right);
    switch (static_cast<Opcode>(step_->opcode)) {
      case Opcode::sum:
      case Opcode::sum_squares:  // of sums: elements are squared when they are taken in
      case Opcode::mean:
      case Opcode::batchmatmul:  // partial sums
      case Opcode::batchmatmul_int8:
        return std::bit_cast<uint32_t>(a + b);
      case Opcode::prod:
        return std::bit_cast<uint32_t>(a * b);
      case Opcode::amax:
        return std::isnan(a) || a > b ? left : right;
      case Opcode::amin:
        return std::isnan(a) || a < b ? left : right;
      case Opcode::sum_int:
        return left + right;
      case Opcode::prod_int:
        return left * right;
      case Opcode::amax_int:
        return i > k ? left : right;
      case Opcode::amin_int:
        return i < k ? left : right;
      default:
        throw std::logic_error("not a reduction");
    }
  }

  // ---- Memory ----------------------------------------------------------------------------------

  const OperandRecord& operand(int position) const {
    return program_.operands[step_->first_operand + position];
  }
  static int per_stick(const OperandRecord& record) {
    return elems_per_stick(static_cast<DataFormat>(record.format));
  }

  bool is_missing(int position, const Point& point, int lane) const {
    const OperandRecord& record = operand(position);
    if ((step_->tail_cores >> core_ & 1) == 0 || record.lanes != 0 || record.tail_tiles == 0) {
      return false;
    }
    return point[step_->stick_dim] == extent_[step_->stick_dim] - 1 &&
           lane / per_stick(record) >= record.tail_tiles;
  }

  std::byte* address(int position, const Point& point, int lane) {
    const OperandRecord& record = operand(position);
    int64_t place = program_.bases[record.base + (record.base_count == 1 ? 0 : slot_)];
    for (int dim = 0; dim < step_->rank; ++dim) place += point[dim] * record.stride[dim];
    for (size_t i = 0; i < loops_.size(); ++i) place += loops_[i] * record.loop_stride[i];
    if (record.lanes == 0) {
      const int tile = lane / per_stick(record);
      if (lanes_ > per_stick(record)) place += tile * record.tile_stride;
      place += lane % per_stick(record) * element_bytes(static_cast<DataFormat>(record.format));
    }
    if (record.space == static_cast<uint8_t>(Space::Device)) {
      return memory_.data() + bindings_[record.symbol].value + place;
    }
    lx_[core_].resize(kLxBytes);
    return lx_[core_].data() + place;
  }

  uint32_t read(int position, const Point& point, int lane) {
    if (is_missing(position, point, lane)) return 0;
    return decode(address(position, point, lane), operand(position));
  }

  static uint32_t decode(const std::byte* from, const OperandRecord& record) {
    const auto format = static_cast<DataFormat>(record.format);
    uint32_t raw = 0;
    std::memcpy(&raw, from, element_bytes(format));
    return format_info(format).domain == Domain::Float
               ? std::bit_cast<uint32_t>(decode_float(format, raw))
               : static_cast<uint32_t>(decode_int(format, raw));
  }

  // What is computed has one NaN; what is moved keeps its bits.
  void write(const Point& point, int lane, uint32_t word) {
    const auto format = static_cast<DataFormat>(operand(step_->inputs).format);
    const bool is_float = format_info(format).domain == Domain::Float;
    const bool is_nan = is_float && std::isnan(std::bit_cast<float>(word));
    write_bits(point, lane, is_nan ? std::bit_cast<uint32_t>(NAN) : word);
  }

  void write_bits(const Point& point, int lane, uint32_t word) {
    if (is_missing(step_->inputs, point, lane)) return;
    const auto format = static_cast<DataFormat>(operand(step_->inputs).format);
    const uint32_t raw = format_info(format).domain == Domain::Float
                             ? encode_float(format, std::bit_cast<float>(word))
                             : encode_int(format, static_cast<int32_t>(word));
    std::memcpy(address(step_->inputs, point, lane), &raw, element_bytes(format));
  }

  const Program& program_;
  const std::vector<Binding> bindings_;
  std::vector<std::byte>& memory_;
  const StepRecord* step_ = nullptr;
  int lanes_ = 1, slot_ = 0, core_ = 0;
  Point extent_, loops_;
  std::map<int, std::vector<std::byte>> lx_;
  std::map<Point, std::vector<uint32_t>> partials_;
  bool is_giving_ = true;
};

}  // namespace spyre::testing
