#include "address_space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "driver.h"
#include "host_memory.h"

namespace spyre {

AddressSpace::AddressSpace(int64_t granules)
    : reserved_bytes_((granules + 1) * kGranuleBytes), is_committed_(granules, false) {
  void* mapped =
      mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw OutOfMemory("the host refuses to reserve " + format_bytes(reserved_bytes_) +
                          " of address space for the card's memory (" + std::strerror(errno) +
                          "); raise the limit (ulimit -v) or give the card less memory with "
                          "SPYRE_CARD_MEMORY",
                      /*host_is_full=*/true);
  }
  reservation_ = static_cast<std::byte*>(mapped);
  const auto misaligned = reinterpret_cast<uintptr_t>(mapped) % kGranuleBytes;
  data_ = reservation_ + (misaligned == 0 ? 0 : kGranuleBytes - misaligned);
  // Only advice: a host without huge pages is slower, not wrong.
  madvise(reservation_, reserved_bytes_, MADV_HUGEPAGE);
}

AddressSpace::~AddressSpace() { munmap(reservation_, reserved_bytes_); }

void AddressSpace::for_each_run(int64_t first, int64_t last, bool committed,
                                const std::function<void(int64_t, int64_t)>& visit) const {
  for (int64_t begin = first; begin < last;) {
    int64_t end = begin + 1;
    while (end < last && is_committed_[end] == is_committed_[begin]) ++end;
    if (is_committed_[begin] == committed) visit(begin, end);
    begin = end;
  }
}

void AddressSpace::commit(int64_t first, int64_t last) {
  for_each_run(first, last, false, [this](int64_t begin, int64_t end) {
    const int64_t bytes = (end - begin) * kGranuleBytes;
    if (mprotect(data_ + begin * kGranuleBytes, bytes, PROT_READ | PROT_WRITE) != 0) {
      throw OutOfMemory("the host refuses to commit " + format_bytes(bytes) +
                            " for the card's memory: " + std::strerror(errno),
                        /*host_is_full=*/true);
    }
    for (int64_t granule = begin; granule < end; ++granule) is_committed_[granule] = true;
    committed_ += end - begin;
  });
}

void AddressSpace::decommit(int64_t first, int64_t last) {
  for_each_run(first, last, true, [this](int64_t begin, int64_t end) {
    std::byte* start = data_ + begin * kGranuleBytes;
    const int64_t bytes = (end - begin) * kGranuleBytes;
    madvise(start, bytes, MADV_DONTNEED);
    // The pages are gone either way; protecting them can only fail for want of map entries, and
    // then they count as committed still.
    if (mprotect(start, bytes, PROT_NONE) != 0) return;
    for (int64_t granule = begin; granule < end; ++granule) is_committed_[granule] = false;
    committed_ -= end - begin;
  });
}

int64_t AddressSpace::untouched_bytes() const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> is_resident;
  int64_t untouched = 0;
  for_each_run(0, granules(), true, [&](int64_t begin, int64_t end) {
    const int64_t bytes = (end - begin) * kGranuleBytes;
    is_resident.assign(bytes / page, 0);
    // On failure all pages count as untouched: the careful side.
    mincore(data_ + begin * kGranuleBytes, bytes, is_resident.data());
    for (const unsigned char resident : is_resident) untouched += (resident & 1) ? 0 : page;
  });
  return untouched;
}

}  // namespace spyre
