#include "shadow.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "host_memory.h"
#include "values.h"

namespace spyre {
namespace {

void* reserve(int64_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw OutOfMemory("the host refuses to reserve " + format_bytes(bytes) +
                          " of address space for checked mode (" + std::strerror(errno) +
                          "); raise the limit (ulimit -v), give the card less memory with "
                          "SPYRE_CARD_MEMORY, or unset SPYRE_CARD_CHECK",
                      /*host_is_full=*/true);
  }
  return mapped;
}

int64_t uses_bytes(int64_t bytes) {
  return (bytes / kStickBytes + 1) * static_cast<int64_t>(sizeof(StickUse));
}

// Calls `visit(address, bytes)` for the runs of the card's side of a nest.
template <typename Visit>
void for_each_device_run(const DmaNest& nest, Address address, int element, Visit visit) {
  std::array<int64_t, shadow_detail::kMaxLoops> stride{};
  for (size_t i = 0; i < nest.range.size(); ++i) stride[i] = nest.device_stride[i] * element;
  const Address start = address + nest.device_offset * element;
  for_each_run(nest.range, {stride.data(), nest.range.size()}, element,
               [&](int64_t offset, int64_t bytes) { visit(start + offset, bytes); });
}

}  // namespace

const char* describe(uint8_t state) {
  switch (state) {
    case kNeverWritten:
      return "was never written";
    case kUndefined:
      return "was computed from bytes that were never written";
    case kPoison:
      return "is padding";
    default:
      return "is valid";
  }
}

Shadow::Shadow(int64_t bytes) : bytes_(bytes), states_(static_cast<uint8_t*>(reserve(bytes))) {
  try {
    uses_ = static_cast<StickUse*>(reserve(uses_bytes(bytes)));
  } catch (const OutOfMemory&) {
    munmap(states_, bytes_);
    throw;
  }
}

Shadow::~Shadow() {
  munmap(uses_, uses_bytes(bytes_));
  munmap(states_, bytes_);
}

void Shadow::forget(uint64_t offset, int64_t bytes) {
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t end = offset + bytes;
  const uint64_t first = (offset + page - 1) / page * page;
  const uint64_t last = end / page * page;
  if (first >= last) {
    std::memset(states(offset), kNeverWritten, bytes);
    return;
  }
  std::memset(states(offset), kNeverWritten, first - offset);
  if (madvise(states(first), last - first, MADV_DONTNEED) != 0) {
    std::memset(states(first), kNeverWritten, last - first);
  }
  std::memset(states(last), kNeverWritten, end - last);
}

void mark_transfer(const Shadow& shadow, Address to, const DmaDescriptor& how,
                   const std::byte* device) {
  const int element = element_bytes(how.device_format);
  const bool has_values =
      device != nullptr && format_info(how.device_format).domain == Domain::Float;
  for (const DmaNest& nest : how.nests) {
    for_each_device_run(nest, to, element, [&](Address address, int64_t bytes) {
      uint8_t* states = shadow.states(address);
      std::memset(states, nest.is_padding ? kPoison : kValid, bytes);
      if (!has_values || nest.is_padding) return;
      for_each_value(how.device_format, device + address, bytes / element,
                     [&](int64_t i, float value) {
                       if (!is_finite(value))
                         std::memset(states + i * element, kNonFinite, element);
                     });
    });
  }
}

std::optional<BadElement> find_undefined(const Shadow& shadow, Address from,
                                         const DmaDescriptor& how) {
  const int element = element_bytes(how.device_format);
  std::optional<BadElement> worst;
  for (const DmaNest& nest : how.nests) {
    if (nest.is_padding) continue;
    for_each_device_run(nest, from, element, [&](Address address, int64_t bytes) {
      const uint8_t* states = shadow.states(address);
      const uint8_t* bad =
          std::find_if_not(states, states + bytes, [](uint8_t state) { return is_defined(state); });
      if (bad == states + bytes) return;
      const Address place = address + (bad - states) / element * element;
      if (!worst || place < worst->address) worst = BadElement{place, *bad};
    });
  }
  return worst;
}

}  // namespace spyre
