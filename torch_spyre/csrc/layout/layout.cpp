#include "layout.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace spyre {
namespace {

using Sizes = std::vector<int64_t>;

[[noreturn]] void fail(const std::string& message) {
  throw std::invalid_argument("SpyreTensorLayout: " + message);
}

std::string text(const Sizes& values) {
  std::string result = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    result += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return result + "]";
}

int64_t checked_product(int64_t a, int64_t b, const char* what) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(std::string(what) + " does not fit 64 bits");
  }
  return product;
}

int64_t checked_elems_per_stick(DataFormat format) {
  if (!is_valid_format(static_cast<uint8_t>(format)) || elems_per_stick(format) == 0) {
    fail("device_dtype " + std::string(format_info(format).name) + " is not a format of elements");
  }
  return elems_per_stick(format);
}

void check_sizes(const Sizes& sizes, const char* name) {
  int64_t numel = 1;
  for (int64_t size : sizes) {
    if (size < 0) fail(std::string(name) + " " + text(sizes) + " has a negative size");
    numel = checked_product(numel, std::max<int64_t>(size, 1), name);
  }
}

// As torch counts them: a dimension of size 0 counts as 1.
Sizes contiguous_strides(const Sizes& sizes) {
  check_sizes(sizes, "host_size");
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

Sizes identity_order(size_t rank) {
  Sizes order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void check_order(const Sizes& order, size_t rank) {
  Sizes sorted = order;
  if (sorted.size() == rank + 1 && sorted.back() == -1) sorted.pop_back();
  std::sort(sorted.begin(), sorted.end());
  if (sorted != identity_order(rank)) {
    fail("dim_order " + text(order) + " is not a permutation of the " + std::to_string(rank) +
         " host dimensions, optionally followed by -1 for a sparse tensor");
  }
}

void check_host_strides(const Sizes& sizes, const Sizes& strides) {
  if (strides.size() != sizes.size()) {
    fail("host_size " + text(sizes) + " and host_strides " + text(strides) + " differ in length");
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] < 0 || (strides[i] == 0 && sizes[i] > 1)) {
      fail("host_strides " + text(strides) + ": the stride of dimension " + std::to_string(i) +
           " (size " + std::to_string(sizes[i]) + ") must be positive");
    }
  }
}

}  // namespace

std::string_view element_arrangement_name(ElementArrangement arrangement) {
  switch (arrangement) {
    case ElementArrangement::STANDARD:
      return "STANDARD";
    case ElementArrangement::DL16_TO_FP32:
      return "DL16_TO_FP32";
    case ElementArrangement::QFP8CH:
      return "QFP8CH";
    case ElementArrangement::EXX2:
      return "EXX2";
  }
  return "INVALID";
}

SpyreTensorLayout SpyreTensorLayout::from_host(const Sizes& host_size, DataFormat format) {
  return from_host(host_size, contiguous_strides(host_size), format,
                   identity_order(host_size.size()));
}

SpyreTensorLayout SpyreTensorLayout::from_host(const Sizes& host_size, const Sizes& host_strides,
                                               DataFormat format, const Sizes& dim_order,
                                               ElementArrangement element_arrangement) {
  const int64_t stick = checked_elems_per_stick(format);
  check_sizes(host_size, "host_size");
  check_host_strides(host_size, host_strides);
  check_order(dim_order, host_size.size());

  Sizes device_size;
  Sizes stride_map;
  const auto append = [&](int64_t size, int64_t stride) {
    device_size.push_back(size);
    stride_map.push_back(stride);
  };
  const auto append_host_dim = [&](int64_t dim) {
    append(host_size[dim], host_size[dim] == 1 ? -1 : std::max<int64_t>(host_strides[dim], 1));
  };
  // Rank 0 and a sparse tensor both have a stick dimension that the host does not have.
  const int64_t stick_dim = dim_order.empty() ? -1 : dim_order.back();
  const int64_t stick_size = stick_dim < 0 ? 1 : host_size[stick_dim];
  const bool one_per_stick = stick_size == 1;
  const int64_t stick_stride = one_per_stick ? -1 : std::max<int64_t>(host_strides[stick_dim], 1);
  const int64_t tiles = stick_size / stick + (stick_size % stick != 0);
  const int64_t tile_stride =
      one_per_stick ? -1 : checked_product(stick_stride, stick, "the stride of a tile");

  for (size_t i = 1; i + 1 < dim_order.size(); ++i) append_host_dim(dim_order[i]);
  append(tiles, tile_stride);
  if (dim_order.size() > 1) append_host_dim(dim_order.front());
  append(stick, stick_stride);
  return SpyreTensorLayout(std::move(device_size), std::move(stride_map), format,
                           element_arrangement);
}

SpyreTensorLayout::SpyreTensorLayout(Sizes device_size, Sizes stride_map, DataFormat device_dtype,
                                     ElementArrangement element_arrangement)
    : device_size_(std::move(device_size)),
      stride_map_(std::move(stride_map)),
      device_dtype_(device_dtype),
      element_arrangement_(element_arrangement),
      device_strides_(device_size_.size()) {
  const int64_t stick = checked_elems_per_stick(device_dtype_);
  check_sizes(device_size_, "device_size");
  if (device_size_.size() != stride_map_.size()) {
    fail("device_size " + text(device_size_) + " and stride_map " + text(stride_map_) +
         " differ in length");
  }
  if (device_size_.empty() || device_size_.back() != stick) {
    fail("the last entry of device_size " + text(device_size_) + " must be one stick of " +
         std::string(format_info(device_dtype_).name) + ", " + std::to_string(stick) + " elements");
  }
  for (int64_t stride : stride_map_) {
    if (stride < -1 || stride == 0) {
      fail("stride_map " + text(stride_map_) +
           ": entries are positive host strides, or -1 for a dimension without host counterpart");
    }
  }

  int64_t device_stride = 1;
  for (size_t dim = device_size_.size(); dim-- > 0;) {
    device_strides_[dim] = device_stride;
    device_stride *= std::max<int64_t>(device_size_[dim], 1);
    device_numel_ *= device_size_[dim];
  }
  // A dimension of size 1 has no digit: its stride may well be smaller than what the dimensions
  // within it cover (the single tile of rows that are shorter than a stick).
  for (size_t dim = 0; dim < stride_map_.size(); ++dim) {
    if (stride_map_[dim] > 0 && device_size_[dim] > 1) {
      places_.push_back({stride_map_[dim], device_size_[dim], dim});
    }
  }
  std::stable_sort(places_.begin(), places_.end(),
                   [](const Place& a, const Place& b) { return a.stride > b.stride; });
}

int64_t SpyreTensorLayout::nbytes() const {
  // By sticks: an element may be less than a byte.
  return device_numel_ / elems_per_stick() * kStickBytes;
}

Sizes SpyreTensorLayout::device_coordinates(int64_t host_offset) const {
  Sizes coordinates(device_size_.size(), 0);
  int64_t remainder = host_offset;
  for (const Place& place : places_) {
    coordinates[place.dim] = remainder / place.stride;
    remainder %= place.stride;
  }
  return coordinates;
}

int64_t SpyreTensorLayout::device_offset(int64_t host_offset) const {
  int64_t result = 0;
  int64_t remainder = host_offset;
  for (const Place& place : places_) {
    result += remainder / place.stride * device_strides_[place.dim];
    remainder %= place.stride;
  }
  return result;
}

std::string SpyreTensorLayout::why_not_for(int64_t host_numel) const {
  if (host_numel <= 0) return "";
  const std::string elements = std::to_string(host_numel) + " host elements";
  if (device_numel_ == 0) {
    return "device_size " + text(device_size_) + " has no room for " + elements;
  }
  // Offsets [0, limit) reach the place at hand; what its digit leaves over reaches the next one.
  int64_t limit = host_numel;
  int64_t previous = 0;
  for (const Place& place : places_) {
    if (place.stride == previous) {
      return "two device dimensions advance " + std::to_string(previous) +
             " host elements per step: an element would have two places";
    }
    const int64_t digit = (limit - 1) / place.stride;
    if (digit >= place.size) {
      return "device dimension " + std::to_string(place.dim) + " (size " +
             std::to_string(place.size) + ", stride " + std::to_string(place.stride) +
             ") needs a size of " + std::to_string(digit + 1) + " to hold " + elements;
    }
    limit = std::min(limit, place.stride);
    previous = place.stride;
  }
  if (limit > 1) {
    return "no device dimension holds host offsets 1 to " + std::to_string(limit - 1) + ": " +
           elements + " need a stride_map entry of 1";
  }
  return "";
}

int64_t SpyreTensorLayout::block_start(int64_t first, int64_t last) const {
  int64_t start = 0;
  int64_t first_rest = first;
  int64_t last_rest = last;
  for (const Place& place : places_) {
    if (first_rest / place.stride != last_rest / place.stride) break;
    first_rest %= place.stride;
    last_rest %= place.stride;
    start = first - first_rest;
  }
  return start;
}

bool SpyreTensorLayout::operator==(const SpyreTensorLayout& other) const {
  return device_size_ == other.device_size_ && stride_map_ == other.stride_map_ &&
         device_dtype_ == other.device_dtype_ && element_arrangement_ == other.element_arrangement_;
}

std::string SpyreTensorLayout::to_string() const {
  std::string result = "SpyreTensorLayout(device_size=" + text(device_size_) +
                       ", stride_map =" + text(stride_map_) + ", device_dtype=DataFormats." +
                       std::string(format_info(device_dtype_).name);
  if (element_arrangement_ != ElementArrangement::STANDARD) {
    result += ", element_arrangement=ElementArrangement." +
              std::string(element_arrangement_name(element_arrangement_));
  }
  return result + ")";
}

size_t SpyreTensorLayout::hash() const {
  size_t seed = static_cast<size_t>(device_dtype_) * 31 + static_cast<size_t>(element_arrangement_);
  const auto mix = [&seed](int64_t value) {
    seed ^= std::hash<int64_t>{}(value) + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2);
  };
  for (int64_t size : device_size_) mix(size);
  for (int64_t stride : stride_map_) mix(stride);
  return seed;
}

}  // namespace spyre
