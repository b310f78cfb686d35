// The card's LPDDR5 as a range of the host's address space: reserved once, committed in granules
// as it is used, given back when it is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace spyre {

// A huge page of the host: the unit in which memory is committed and given back.
inline constexpr int64_t kGranuleBytes = 2 * 1024 * 1024;

class AddressSpace {
 public:
  explicit AddressSpace(int64_t granules);  // throws OutOfMemory when the host refuses
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  std::byte* data() const { return data_; }
  int64_t granules() const { return static_cast<int64_t>(is_committed_.size()); }
  bool is_committed(int64_t granule) const { return is_committed_[granule]; }
  int64_t committed_bytes() const { return committed_ * kGranuleBytes; }

  // Makes granules [first, last) usable. Throws OutOfMemory when the host refuses; granules
  // committed until then stay so.
  void commit(int64_t first, int64_t last);
  // Gives them back; their contents are lost.
  void decommit(int64_t first, int64_t last);

  // What the host has promised but not yet handed out, because nobody touched it.
  int64_t untouched_bytes() const;

 private:
  // Calls `visit(begin, end)` for each run of equally committed granules in [first, last).
  void for_each_run(int64_t first, int64_t last, bool committed,
                    const std::function<void(int64_t, int64_t)>& visit) const;

  std::byte* reservation_ = nullptr;
  int64_t reserved_bytes_ = 0;
  std::byte* data_ = nullptr;  // the first granule, aligned to its size
  std::vector<bool> is_committed_;
  int64_t committed_ = 0;
};

}  // namespace spyre
