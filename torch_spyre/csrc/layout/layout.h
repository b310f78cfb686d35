// How a tensor lies in the card's memory.
//
// A host tensor has one stride per dimension; on the card it is tiled into sticks and so has more
// dimensions than on the host. A layout gives the shape on the card (`device_size`, row-major,
// innermost dimension one stick) and, for each of its dimensions, how many host elements one step
// advances (`stride_map`; -1: no host counterpart, only padding beyond coordinate 0).
//
// Seen from the host, an offset is a number in mixed radix: the positive entries of the stride map
// are the **places** at which its digits change, and the digits are the device coordinates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "card/formats.h"

namespace spyre {

// How elements lie within a stick. Steps compute in STANDARD only.
enum class ElementArrangement : uint8_t {
  STANDARD = 0,
  DL16_TO_FP32 = 1,
  QFP8CH = 2,
  EXX2 = 3,
};

std::string_view element_arrangement_name(ElementArrangement arrangement);

// An immutable value. What makes one throws std::invalid_argument with a message for users.
class SpyreTensorLayout {
 public:
  // Exactly this.
  SpyreTensorLayout(std::vector<int64_t> device_size, std::vector<int64_t> stride_map,
                    DataFormat device_dtype,
                    ElementArrangement element_arrangement = ElementArrangement::STANDARD);

  // The default layout of a contiguous host tensor: its last dimension in the sticks.
  static SpyreTensorLayout from_host(const std::vector<int64_t>& host_size, DataFormat format);

  // The last dimension of `dim_order` goes into the sticks, the first is the one that is tiled
  // along. A trailing -1 asks for a sparse tensor: one host element per stick.
  static SpyreTensorLayout from_host(
      const std::vector<int64_t>& host_size, const std::vector<int64_t>& host_strides,
      DataFormat format, const std::vector<int64_t>& dim_order,
      ElementArrangement element_arrangement = ElementArrangement::STANDARD);

  const std::vector<int64_t>& device_size() const { return device_size_; }
  const std::vector<int64_t>& stride_map() const { return stride_map_; }
  DataFormat device_dtype() const { return device_dtype_; }
  ElementArrangement element_arrangement() const { return element_arrangement_; }

  int64_t elems_per_stick() const { return device_size_.back(); }
  const std::vector<int64_t>& device_strides() const { return device_strides_; }  // in elements
  int64_t device_numel() const { return device_numel_; }
  int64_t nbytes() const;  // on the card, padding included

  // Where the element at `host_offset` of the storage is, for a storage that the layout fits.
  std::vector<int64_t> device_coordinates(int64_t host_offset) const;
  int64_t device_offset(int64_t host_offset) const;

  // Empty if every host offset in [0, host_numel) has a place on the card, else the reason.
  std::string why_not_for(int64_t host_numel) const;

  // The frame of a view that touches host offsets `first`..`last`: the start of the smallest block
  // of the layout that holds both. Within it the layout looks the same from every such start,
  //   device_offset(start + d) == device_offset(start) + device_offset(d)
  // for d in [first - start, last - start], so views that differ only in the block they lie in
  // can share everything that was computed relative to the start.
  int64_t block_start(int64_t first, int64_t last) const;

  bool operator==(const SpyreTensorLayout& other) const;
  size_t hash() const;
  std::string to_string() const;

 private:
  // One digit of a host offset: it counts steps of `stride` and is the coordinate in `dim`.
  struct Place {
    int64_t stride;
    int64_t size;
    size_t dim;
  };

  std::vector<int64_t> device_size_;
  std::vector<int64_t> stride_map_;
  DataFormat device_dtype_;
  ElementArrangement element_arrangement_;

  // Derived.
  std::vector<int64_t> device_strides_;
  int64_t device_numel_ = 1;
  std::vector<Place> places_;  // largest stride first
};

}  // namespace spyre

template <>
struct std::hash<spyre::SpyreTensorLayout> {
  size_t operator()(const spyre::SpyreTensorLayout& layout) const { return layout.hash(); }
};
