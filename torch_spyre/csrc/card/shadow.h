// Shadow memory: what checked mode knows of every byte and every stick of a memory of the card.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>

#include "driver.h"
#include "formats.h"

namespace spyre {

// What a byte holds. The worse the smaller: a value computed from several is as bad as the worst.
enum State : uint8_t {
  kNeverWritten = 0,  // as memory comes from the allocator, and LX at the start of a kernel
  kUndefined = 1,     // computed from bytes that were never written
  kPoison = 2,        // padding, the lanes of a sparse stick other than the first
  kNonFinite = 3,     // NaN, an infinity, or computed from one (CheckMode::NonFinite only)
  kValid = 4,
};
inline bool is_defined(uint8_t state) { return state >= kNonFinite; }

// "was never written" and so on: completes "the stick ...".
const char* describe(uint8_t state);

// Who used a stick last. Runs of steps are numbered; 0 is none.
struct StickUse {
  uint32_t read = 0;
  uint32_t written = 0;
  uint32_t buffer = 0;  // that the last write belongs to; 0: not known
  uint8_t reader = 0;   // the core, or kSeveralCores since the last barrier
  uint8_t writer = 0;
};
inline constexpr uint8_t kSeveralCores = 0xFF;

// Address space like the memory it describes: the host provides what is touched. Two threads may
// use it at once as long as they use different sticks, as transfers and kernels do.
class Shadow {
 public:
  explicit Shadow(int64_t bytes);  // throws OutOfMemory when the host refuses
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  uint8_t* states(uint64_t offset) const { return states_ + offset; }
  StickUse& use(uint64_t offset) const { return uses_[offset / kStickBytes]; }

  // The bytes are as if never written; large ranges go back to the host.
  void forget(uint64_t offset, int64_t bytes);

 private:
  int64_t bytes_ = 0;
  uint8_t* states_ = nullptr;
  StickUse* uses_ = nullptr;
};

// Host bytes that a byte of the card's memory costs in checked mode: itself, its state, its share
// of a StickUse.
inline constexpr double kCheckedHostBytes = 2.0 + double{sizeof(StickUse)} / kStickBytes;

// ---- Transfers ---------------------------------------------------------------------------------

// After a transfer to the card: elements are valid, padding is poison. `device` is the card's
// address 0; with it, values that are not finite are told apart.
void mark_transfer(const Shadow& shadow, Address to, const DmaDescriptor& how,
                   const std::byte* device);

// The first element of a transfer to the host that is not valid.
struct BadElement {
  Address address = 0;
  uint8_t state = kNeverWritten;
};
std::optional<BadElement> find_undefined(const Shadow& shadow, Address from,
                                         const DmaDescriptor& how);

// ---- Walking ------------------------------------------------------------------------------------

// Calls `visit(offset, bytes)` for runs of bytes that cover exactly the places a nest of loops
// reaches with units of `unit` bytes; each place at least once, in no particular order.
template <typename Visit>
void for_each_run(std::span<const int64_t> extent, std::span<const int64_t> stride, int64_t unit,
                  Visit visit);

// ---- Templates ---------------------------------------------------------------------------------

namespace shadow_detail {

inline constexpr size_t kMaxLoops = 16;

struct RunLoop {
  int64_t extent = 1;
  int64_t stride = 0;
};

template <typename Visit>
void visit_runs(std::span<const RunLoop> loops, int64_t offset, int64_t unit, Visit& visit) {
  if (loops.empty()) {
    visit(offset, unit);
    return;
  }
  for (int64_t i = 0; i < loops[0].extent; ++i) {
    visit_runs(loops.subspan(1), offset + i * loops[0].stride, unit, visit);
  }
}

}  // namespace shadow_detail

template <typename Visit>
void for_each_run(std::span<const int64_t> extent, std::span<const int64_t> stride, int64_t unit,
                  Visit visit) {
  using shadow_detail::RunLoop;
  std::array<RunLoop, shadow_detail::kMaxLoops> loops;
  size_t rank = 0;
  int64_t start = 0;
  for (size_t i = 0; i < extent.size(); ++i) {
    if (extent[i] == 0) return;
    if (extent[i] == 1 || stride[i] == 0) continue;
    if (stride[i] < 0) start += stride[i] * (extent[i] - 1);
    loops[rank++] = {extent[i], std::abs(stride[i])};
  }
  std::sort(loops.begin(), loops.begin() + rank,
            [](const RunLoop& a, const RunLoop& b) { return a.stride > b.stride; });
  for (; rank > 0 && loops[rank - 1].stride == unit; --rank) unit *= loops[rank - 1].extent;
  shadow_detail::visit_runs({loops.data(), rank}, start, unit, visit);
}

}  // namespace spyre
