#include "dma.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace spyre {
namespace {

using kernels::Codec;
using kernels::CopyNest;
using Wide = __int128;

// More elements than any card or host holds.
constexpr int64_t kMaxElements = int64_t{1} << 40;
// A piece of a transfer worth waking a thread for.
constexpr int64_t kSliceBytes = 512 * 1024;

[[noreturn]] void fail(size_t nest, const std::string& reason) {
  throw std::invalid_argument("DMA descriptor, nest " + std::to_string(nest) + ": " + reason);
}

bool is_empty(const DmaNest& nest) {
  return std::find(nest.range.begin(), nest.range.end(), 0) != nest.range.end();
}

int64_t elements_of(const DmaNest& nest) {
  if (is_empty(nest)) return 0;
  Wide elements = 1;
  for (const int64_t range : nest.range) elements = std::min<Wide>(elements * range, kMaxElements);
  return static_cast<int64_t>(elements);
}

struct Offsets {
  Wide first = 0;
  Wide last = 0;
};

Offsets offsets_of(const DmaNest& nest, int64_t offset, const std::vector<int64_t>& stride) {
  Offsets offsets{offset, offset};
  for (size_t dim = 0; dim < nest.range.size(); ++dim) {
    const Wide way = static_cast<Wide>(stride[dim]) * (nest.range[dim] - 1);
    (way < 0 ? offsets.first : offsets.last) += way;
  }
  return offsets;
}

void check_offsets(size_t index, const char* side, const Offsets& offsets, int element_bytes,
                   int64_t bytes) {
  if (offsets.first < 0 || (offsets.last + 1) * element_bytes > bytes) {
    fail(index, std::string("an element lies outside the ") + std::to_string(bytes) +
                    " bytes on the " + side);
  }
}

void check_nest(size_t index, const DmaNest& nest, const DmaDescriptor& descriptor) {
  const size_t rank = nest.range.size();
  if (rank > kernels::kMaxRank) {
    fail(index, std::to_string(rank) + " loops, at most " + std::to_string(kernels::kMaxRank) +
                    " are possible");
  }
  if (nest.device_stride.size() != rank || (nest.host_stride.size() != rank && !nest.is_padding)) {
    fail(index, "ranges and strides differ in number");
  }
  if (std::any_of(nest.range.begin(), nest.range.end(), [](int64_t n) { return n < 0; })) {
    fail(index, "a negative range");
  }
  if (is_empty(nest)) return;
  if (elements_of(nest) >= kMaxElements) fail(index, "too many elements");
  check_offsets(index, "card", offsets_of(nest, nest.device_offset, nest.device_stride),
                element_bytes(descriptor.device_format), descriptor.device_bytes);
  if (nest.is_padding) return;
  check_offsets(index, "host", offsets_of(nest, nest.host_offset, nest.host_stride),
                host_element_bytes(descriptor.host_format), descriptor.host_bytes);
}

// One side of a transfer, in bytes.
struct Side {
  std::array<int64_t, kernels::kMaxRank> stride{};
  int64_t offset = 0;
};

Side make_side(std::span<const int64_t> stride, int64_t offset, std::span<const int64_t> range,
               int bytes) {
  Side side;
  side.offset = offset * bytes;
  // The stride of a loop that runs once is not checked, and does not matter.
  for (size_t i = 0; i < stride.size(); ++i) side.stride[i] = range[i] > 1 ? stride[i] * bytes : 0;
  return side;
}

int64_t run_nest(std::span<const int64_t> range, const Side& from_side, const Side& to_side,
                 const Codec& codec, const std::byte* from, std::byte* to, ThreadPool& pool) {
  CopyNest nest;
  nest.rank = static_cast<int>(range.size());
  int64_t elements = 1;
  bool is_disjoint = true;  // no two iterations write the same place, so that slices can't race
  for (int i = 0; i < nest.rank; ++i) {
    nest.extent[i] = range[i];
    nest.from_stride[i] = from_side.stride[i];
    nest.to_stride[i] = to_side.stride[i];
    elements *= range[i];
    is_disjoint &= range[i] <= 1 || to_side.stride[i] != 0;
  }
  from += from_side.offset;
  to += to_side.offset;
  nest = kernels::simplify(nest);
  const int64_t pieces = elements * std::max(codec.from_bytes, codec.to_bytes) / kSliceBytes;
  const int parts = static_cast<int>(std::min<int64_t>(pieces, 4 * pool.threads()));
  if (parts <= 1 || pool.threads() == 1 || !is_disjoint) {
    return kernels::run_copy(nest, codec, from, to);
  }
  std::atomic<int64_t> misfits{0};
  pool.run(parts, [&](int i) {
    const kernels::NestSlice slice = kernels::slice(nest, parts, i);
    misfits += kernels::run_copy(slice.nest, codec, from + slice.from_offset, to + slice.to_offset);
  });
  return misfits;
}

}  // namespace

void check_descriptor(const DmaDescriptor& descriptor) {
  const bool is_known = static_cast<int>(descriptor.host_format) < kHostFormats &&
                        is_valid_format(static_cast<uint8_t>(descriptor.device_format));
  if (!is_known || element_bytes(descriptor.device_format) == 0 ||
      !can_convert(descriptor.host_format, descriptor.device_format)) {
    throw std::invalid_argument(
        "DMA descriptor: no conversion between host format " +
        (is_known ? std::string(host_format_name(descriptor.host_format))
                  : std::to_string(static_cast<int>(descriptor.host_format))) +
        " and device format " + std::string(format_info(descriptor.device_format).name));
  }
  if (descriptor.device_bytes < 0 || descriptor.host_bytes < 0) {
    throw std::invalid_argument("DMA descriptor: a negative size");
  }
  for (size_t i = 0; i < descriptor.nests.size(); ++i) {
    check_nest(i, descriptor.nests[i], descriptor);
  }
}

int64_t link_bytes(const DmaDescriptor& descriptor) {
  int64_t elements = 0;
  for (const DmaNest& nest : descriptor.nests) {
    if (!nest.is_padding) elements += elements_of(nest);
  }
  return elements * host_element_bytes(descriptor.host_format);
}

DeviceRange device_range(const DmaDescriptor& descriptor) {
  const int bytes = element_bytes(descriptor.device_format);
  DeviceRange range{descriptor.device_bytes, 0};
  for (const DmaNest& nest : descriptor.nests) {
    if (is_empty(nest)) continue;
    const Offsets offsets = offsets_of(nest, nest.device_offset, nest.device_stride);
    range.first = std::min(range.first, static_cast<int64_t>(offsets.first * bytes));
    range.end = std::max(range.end, static_cast<int64_t>((offsets.last + 1) * bytes));
  }
  return range;
}

int64_t run_to_card(const DmaDescriptor& descriptor, const std::byte* from, std::byte* to,
                    ThreadPool& pool) {
  static constexpr std::array<std::byte, 8> kZeros{};
  const int host_bytes = host_element_bytes(descriptor.host_format);
  const int device_bytes = element_bytes(descriptor.device_format);
  const Codec codec = kernels::codec_to_card(descriptor.host_format, descriptor.device_format);
  int64_t misfits = 0;
  for (const DmaNest& nest : descriptor.nests) {
    if (is_empty(nest)) continue;
    const Side device = make_side(nest.device_stride, nest.device_offset, nest.range, device_bytes);
    if (nest.is_padding) {
      const Codec zeros{device_bytes, device_bytes, nullptr};
      run_nest(nest.range, Side{}, device, zeros, kZeros.data(), to, pool);
    } else {
      const Side host = make_side(nest.host_stride, nest.host_offset, nest.range, host_bytes);
      misfits += run_nest(nest.range, host, device, codec, from, to, pool);
    }
  }
  return misfits;
}

void run_to_host(const DmaDescriptor& descriptor, const std::byte* from, std::byte* to,
                 ThreadPool& pool) {
  const int host_bytes = host_element_bytes(descriptor.host_format);
  const int device_bytes = element_bytes(descriptor.device_format);
  const Codec codec = kernels::codec_to_host(descriptor.host_format, descriptor.device_format);
  for (const DmaNest& nest : descriptor.nests) {
    if (is_empty(nest) || nest.is_padding) continue;
    const Side device = make_side(nest.device_stride, nest.device_offset, nest.range, device_bytes);
    const Side host = make_side(nest.host_stride, nest.host_offset, nest.range, host_bytes);
    run_nest(nest.range, device, host, codec, from, to, pool);
  }
}

}  // namespace spyre
