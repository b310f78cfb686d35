// Random valid steps that follow an index element by element, scatter, sort or scan, with an
// interpreter for them that goes element by element and shares nothing with the card but the codecs
// and the two functions of logcumsumexp.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../../torch_spyre/csrc/card/kernels.h"
#include "accumulations.h"

namespace spyre::testing {

class RandomRows : public RandomAccumulations {
 public:
  using RandomAccumulations::RandomAccumulations;

  // Of a table of single elements.
  ProgramBuilder gather_elements() {
    ProgramBuilder builder;
    const bool is_float = pick(0, 1) == 0;
    const Shape shape = pick_walked_shape(1, 4, pick(0, 3) == 0 ? 20 : 3);
    const DataFormat format = pick_format(is_float);
    OperandRecord table = make(Space::Device, format, Lanes::Element);
    OperandRecord index = make(Space::Device, DataFormat::IEEE_INT32, Lanes::Element);
    OperandRecord output =
        make(Space::Device, pick(0, 1) == 0 ? format : pick_format(is_float), Lanes::Element);
    const int rows = pick(1, 40);
    place_table(builder, shape, table, rows, false);
    place(builder, shape, index, 4, false, false);
    place(builder, shape, output, bytes_of(output), true, false);
    const uint32_t step = builder.step(is_float ? Opcode::gather : Opcode::gather_int, shape.cores,
                                       shape.extent[0], {table, index}, output, StepKind::Gather);
    finish(builder, shape, step);
    add_rows(builder, rows);
    return builder;
  }

  // By element, or by sticks; to the same places again and again.
  ProgramBuilder scatter() {
    static constexpr std::pair<Opcode, bool> kOperations[] = {
        {Opcode::scatter, true},           {Opcode::scatter_add, true},
        {Opcode::scatter_prod, true},      {Opcode::scatter_amax, true},
        {Opcode::scatter_amin, true},      {Opcode::scatter_int, false},
        {Opcode::scatter_add_int, false},  {Opcode::scatter_prod_int, false},
        {Opcode::scatter_amax_int, false}, {Opcode::scatter_amin_int, false}};
    const auto& [opcode, is_float] = kOperations[pick(0, std::size(kOperations) - 1)];
    ProgramBuilder builder;
    Shape shape = pick_walked_shape(0, 3, pick(0, 3) == 0 ? 20 : 4);
    shape.cores = uint32_t{1} << pick(0, kCores - 1);
    shape.extent.resize(1);
    const bool is_element = pick(0, 1) == 0;
    const Lanes lanes = is_element ? Lanes::Element : Lanes::Vector;
    const DataFormat format = pick_format(is_float);
    OperandRecord table = make(Space::Device, format, lanes);
    DataFormat of_source = pick(0, 1) == 0 ? format : pick_format(is_float);
    if (!is_element && elems_per_stick(of_source) > elems_per_stick(format)) of_source = format;
    OperandRecord source = make(Space::Device, of_source, lanes);
    OperandRecord index = make(Space::Device, DataFormat::IEEE_INT32, Lanes::Element);
    shape.lanes = is_element ? 1 : elems_per_stick(format);
    const int tiles = is_element ? 1 : shape.lanes / elems_per_stick(of_source);
    const bool has_tail = tiles > 1 && !shape.extent[0].empty() && pick(0, 1) == 0;
    if (has_tail) source.tail_tiles = static_cast<uint8_t>(pick(0, tiles));
    place(builder, shape, source, is_element ? bytes_of(source) : tiles * kStickBytes, false,
          false);
    place(builder, shape, index, 4, false, false);
    const int rows = pick(1, 7);
    place_table(builder, shape, table, rows, true);
    const uint32_t step = builder.step(opcode, shape.cores, shape.extent[0], {source, index}, table,
                                       StepKind::Scatter);
    if (has_tail) {
      builder.steps[step].stick_dim =
          static_cast<uint8_t>(pick(0, static_cast<int>(shape.extent[0].size()) - 1));
      builder.steps[step].tail_cores = shape.cores;
    }
    finish(builder, shape, step);
    add_rows(builder, rows);
    return builder;
  }

  ProgramBuilder argsort() {
    static constexpr std::pair<Opcode, bool> kOperations[] = {
        {Opcode::argsort, true},
        {Opcode::argsort_descending, true},
        {Opcode::argsort_int, false},
        {Opcode::argsort_int_descending, false}};
    const auto& [opcode, is_float] = kOperations[pick(0, std::size(kOperations) - 1)];
    ProgramBuilder builder;
    const Shape shape = pick_rows_shape();
    OperandRecord input = make(Space::Device, pick_format(is_float), Lanes::Element);
    OperandRecord output = make(Space::Device, DataFormat::IEEE_INT32, Lanes::Element);
    place(builder, shape, input, bytes_of(input), false, false);
    place(builder, shape, output, 4, true, false);
    finish_rows(builder, shape, opcode, input, output, StepKind::Argsort, kNoStickDim);
    return builder;
  }

  ProgramBuilder scan() {
    static constexpr std::pair<Opcode, bool> kOperations[] = {
        {Opcode::cumsum, true},           {Opcode::cumprod, true},
        {Opcode::cummax_index, true},     {Opcode::cummin_index, true},
        {Opcode::logcumsumexp, true},     {Opcode::cumsum_int, false},
        {Opcode::cumprod_int, false},     {Opcode::cummax_index_int, false},
        {Opcode::cummin_index_int, false}};
    const auto& [opcode, is_float] = kOperations[pick(0, std::size(kOperations) - 1)];
    ProgramBuilder builder;
    Shape shape = pick_rows_shape();
    const bool is_element = pick(0, 1) == 0;
    const Lanes lanes = is_element ? Lanes::Element : Lanes::Vector;
    OperandRecord input = make(Space::Device, pick_format(is_float), lanes);
    const DataFormat result =
        gives_positions(opcode) ? DataFormat::IEEE_INT32 : pick_format(is_float);
    OperandRecord output = make(Space::Device, result, lanes);
    const int rank = static_cast<int>(shape.extent[0].size());
    int stick_dim = kNoStickDim;
    if (!is_element) {
      const auto per_stick = [](const OperandRecord& record) {
        return elems_per_stick(static_cast<DataFormat>(record.format));
      };
      shape.lanes = std::max(per_stick(input), per_stick(output));
      if (rank > 1 && pick(0, 1) == 0) stick_dim = (row_dim_ + pick(1, rank - 1)) % rank;
      for (OperandRecord* record : {&input, &output}) {
        const int tiles = shape.lanes / per_stick(*record);
        if (stick_dim != kNoStickDim && tiles > 1) {
          record->tail_tiles = static_cast<uint8_t>(pick(0, tiles));
        }
        place(builder, shape, *record, tiles * kStickBytes, record == &output, false);
      }
    } else {
      place(builder, shape, input, bytes_of(input), false, false);
      place(builder, shape, output, bytes_of(output), true, false);
    }
    finish_rows(builder, shape, opcode, input, output, StepKind::Scan, stick_dim);
    return builder;
  }

 private:
  static int bytes_of(const OperandRecord& record) {
    return element_bytes(static_cast<DataFormat>(record.format));
  }

  // A dimension for the rows, which is long now and then.
  Shape pick_rows_shape() {
    Shape shape = pick_walked_shape(1, 3, 4);
    row_dim_ = pick(0, static_cast<int>(shape.extent[0].size()) - 1);
    if (pick(0, 7) == 0) {
      shape.extent.resize(1);
      shape.extent[0][row_dim_] = pick(0, 3) == 0 ? pick(1000, 2200) : pick(20, 300);
      shape.loops.clear();
    }
    return shape;
  }

  void finish_rows(ProgramBuilder& builder, const Shape& shape, Opcode opcode,
                   const OperandRecord& input, const OperandRecord& output, StepKind kind,
                   int stick_dim) {
    const uint32_t step = builder.step(opcode, shape.cores, shape.extent[0], {input}, output, kind);
    builder.steps[step].reduced = static_cast<uint8_t>(1 << row_dim_);
    builder.steps[step].stick_dim = static_cast<uint8_t>(stick_dim);
    if (stick_dim != kNoStickDim) {
      builder.steps[step].tail_cores = shape.cores & static_cast<uint32_t>(bits());
    }
    finish(builder, shape, step);
  }

  // Rows that follow each other, and beyond them what the dimensions reach.
  void place_table(ProgramBuilder& builder, const Shape& shape, OperandRecord& table, int rows,
                   bool is_output) {
    const bool is_element = table.lanes == static_cast<uint8_t>(Lanes::Element);
    const int64_t unit = is_element ? bytes_of(table) : kStickBytes;
    table.tile_stride = unit;
    int64_t size = rows * unit;
    for (size_t dim = 0; dim < shape.extent[0].size(); ++dim) {
      if (pick(0, 1) == 0) continue;
      table.stride[dim] = pick(0, 2) * unit;
      size += table.stride[dim] * std::max<int64_t>(0, shape.largest(dim) - 1);
    }
    size = (size + kStickBytes - 1) / kStickBytes * kStickBytes;
    table.base = static_cast<uint32_t>(builder.bases.size());
    table.base_count = 1;
    builder.bases.push_back(0);
    table.symbol = builder.address(size, is_output, static_cast<DataFormat>(table.format));
  }

  void add_rows(ProgramBuilder& builder, int rows) {
    const bool is_symbol = pick(0, 3) == 0;
    builder.mask(kNoStickDim, is_symbol ? builder.extent(rows) : rows, {0}, is_symbol);
  }

  int row_dim_ = 0;
};

// Runs the other kinds, too.
class RowModel : public AccumulationModel {
 public:
  using AccumulationModel::AccumulationModel;

 protected:
  void run_point(Point& point) override {
    switch (static_cast<StepKind>(step_->kind)) {
      case StepKind::Scatter:
        return scatter(point);
      case StepKind::Argsort:
        return argsort(point);
      case StepKind::Scan:
        return scan(point);
      default:
        AccumulationModel::run_point(point);
    }
  }

 private:
  void scatter(const Point& point) {
    const int64_t index = static_cast<int32_t>(read(1, point, 0));
    const int64_t rows = length_of(program_.masks[step_->first_mask]);
    if (index < 0 || index >= rows) throw std::out_of_range(std::to_string(index));
    const OperandRecord& table = operand(2);
    for (int lane = 0; lane < lanes_; ++lane) {
      std::byte* const row = address(2, point, lane) + index * table.tile_stride;
      const auto opcode = static_cast<Opcode>(step_->opcode);
      const bool is_move = opcode == Opcode::scatter || opcode == Opcode::scatter_int;
      if (is_move && operand(0).format == table.format) {
        std::memcpy(row, address(0, point, lane), bytes_of(table));
        continue;
      }
      const uint32_t source = read(0, point, lane);
      const uint32_t word = is_move ? source : combined(opcode, decode(row, table), source);
      put(row, table, word);
    }
  }

  static int bytes_of(const OperandRecord& record) {
    return element_bytes(static_cast<DataFormat>(record.format));
  }

  static void put(std::byte* place, const OperandRecord& record, uint32_t word) {
    const auto format = static_cast<DataFormat>(record.format);
    const uint32_t raw = format_info(format).domain == Domain::Float
                             ? encode_float(format, std::bit_cast<float>(word))
                             : encode_int(format, static_cast<int32_t>(word));
    std::memcpy(place, &raw, element_bytes(format));
  }

  static uint32_t number(float value) {
    return std::bit_cast<uint32_t>(std::isnan(value) ? NAN : value);
  }

  static uint32_t combined(Opcode opcode, uint32_t left, uint32_t right) {
    const auto a = std::bit_cast<float>(left), b = std::bit_cast<float>(right);
    const auto i = static_cast<int32_t>(left), k = static_cast<int32_t>(right);
    switch (opcode) {
      case Opcode::scatter_add:
      case Opcode::cumsum:
        return number(a + b);
      case Opcode::scatter_prod:
      case Opcode::cumprod:
        return number(a * b);
      case Opcode::scatter_amax:
        return number(std::isnan(a) || a > b ? a : b);
      case Opcode::scatter_amin:
        return number(std::isnan(a) || a < b ? a : b);
      case Opcode::scatter_add_int:
      case Opcode::cumsum_int:
        return left + right;
      case Opcode::scatter_prod_int:
      case Opcode::cumprod_int:
        return left * right;
      case Opcode::scatter_amax_int:
        return i > k ? left : right;
      case Opcode::scatter_amin_int:
        return i < k ? left : right;
      case Opcode::logcumsumexp: {
        if (std::isnan(a) || std::isnan(b)) return number(NAN);
        if (a == b && std::isinf(a)) return left;
        const float high = std::max(a, b), low = std::min(a, b);
        return number(high + call(Opcode::log1p, call(Opcode::exp, low - high)));
      }
      default:
        throw std::logic_error("not an operation of this model");
    }
  }

  static float call(Opcode opcode, float x) {
    const auto word = std::bit_cast<uint32_t>(x);
    const kernels::Word* const in = &word;
    kernels::Word out = 0;
    kernels::table().pointwise[static_cast<size_t>(opcode)](&in, &out, 1);
    return std::bit_cast<float>(out);
  }

  // By insertion: an element goes before the first that is strictly behind it.
  void argsort(Point& point) {
    const auto opcode = static_cast<Opcode>(step_->opcode);
    const bool is_float = opcode == Opcode::argsort || opcode == Opcode::argsort_descending;
    const bool is_descending =
        opcode == Opcode::argsort_descending || opcode == Opcode::argsort_int_descending;
    const auto is_less = [&](uint32_t left, uint32_t right) {
      const auto a = std::bit_cast<float>(left), b = std::bit_cast<float>(right);
      if (!is_float) return static_cast<int32_t>(left) < static_cast<int32_t>(right);
      return !std::isnan(a) && (std::isnan(b) || a < b);
    };
    std::vector<std::pair<uint32_t, uint32_t>> sorted;
    std::vector<Point> places;
    for_each_reduced(0, point, [&](const Point& at) {
      const uint32_t value = read(0, at, 0);
      const auto behind = std::find_if(sorted.begin(), sorted.end(), [&](const auto& other) {
        return is_descending ? is_less(other.first, value) : is_less(value, other.first);
      });
      sorted.insert(behind, {value, static_cast<uint32_t>(places.size())});
      places.push_back(at);
    });
    for (size_t i = 0; i < places.size(); ++i) write(places[i], 0, sorted[i].second);
  }

  void scan(Point& point) {
    const auto opcode = static_cast<Opcode>(step_->opcode);
    for (int lane = 0; lane < lanes_; ++lane) {
      uint32_t reached = start(opcode), position = 0, count = 0;
      for_each_reduced(0, point, [&](const Point& at) {
        const uint32_t x = read(0, at, lane);
        if (!gives_positions(opcode)) {
          write(at, lane, reached = combined(opcode, reached, x));
          return;
        }
        if (count == 0 || replaces(opcode, x, reached)) {
          reached = x;
          position = count;
        }
        ++count;
        write(at, lane, position);
      });
    }
  }

  static uint32_t start(Opcode opcode) {
    switch (opcode) {
      case Opcode::cumprod:
        return std::bit_cast<uint32_t>(1.0F);
      case Opcode::cumprod_int:
        return 1;
      case Opcode::logcumsumexp:
        return std::bit_cast<uint32_t>(-std::numeric_limits<float>::infinity());
      default:
        return 0;
    }
  }

  static bool replaces(Opcode opcode, uint32_t left, uint32_t right) {
    const auto a = std::bit_cast<float>(left), b = std::bit_cast<float>(right);
    const auto i = static_cast<int32_t>(left), k = static_cast<int32_t>(right);
    switch (opcode) {
      case Opcode::cummax_index:
        return std::isnan(a) || a >= b;
      case Opcode::cummin_index:
        return std::isnan(a) || a <= b;
      case Opcode::cummax_index_int:
        return i >= k;
      default:
        return i <= k;
    }
  }
};

}  // namespace spyre::testing
