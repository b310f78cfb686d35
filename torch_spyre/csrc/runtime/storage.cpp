#include "runtime/storage.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <unordered_map>

#include "runtime/allocator.h"
#include "runtime/cards.h"
#include "runtime/dtypes.h"
#include "runtime/errors.h"
#include "runtime/log.h"
#include "runtime/python_lock.h"
#include "runtime/stream.h"
#include "runtime/strides.h"
#include "runtime/weights.h"

namespace spyre {
namespace {

std::function<void()>& collect_garbage() {
  static std::function<void()> hook;
  return hook;
}

// A DataPtr must hold a unique non-null address. Ours comes from a range of address space that
// nobody can touch, so a stray host access faults instead of reading card memory. Twice the card's
// size, because the host image of an int64 tensor is twice as large as its block.
void* handle_of(c10::DeviceIndex device, Address address) {
  static std::array<std::once_flag, kMaxCards> reserved;
  static std::array<std::byte*, kMaxCards> base{};
  std::call_once(reserved[device], [device] {
    constexpr size_t kMargin = size_t{16} << 20;  // addresses don't start at 0
    const size_t bytes =
        2 * (static_cast<size_t>(driver(device).properties().total_memory) + kMargin);
    void* range =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(range != MAP_FAILED, "could not reserve ", bytes,
                " bytes of address space for the handles of spyre:", static_cast<int>(device),
                "; a limit on address space (ulimit -v) is set too low, or use SPYRE_CARD_MEMORY");
    base[device] = static_cast<std::byte*>(range);
  });
  return base[device] + 2 * address;
}

// PyTorch's legacy pickling wraps a storage's pointer in a storage of its own: the handle then is
// all there is to find the record by.
class Handles {
 public:
  void add(const void* handle, const CardStorage* storage) {
    const std::lock_guard lock(mutex_);
    records_[handle] = storage;
  }
  void remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    records_.erase(handle);
  }
  // The storage ends that borrowed the other one's block.
  void give_back(const void* handle, const CardStorage* storage, const CardStorage* lender) {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(handle);
    if (found != records_.end() && found->second == storage) {
      found->second = lender;
    }
  }
  const CardStorage* find(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(handle);
    return found == records_.end() ? nullptr : found->second;
  }
  // What makes products faster and nothing else depends on. They go when the caller lets go.
  std::vector<std::shared_ptr<const ProductCopy>> take_product_copies() {
    std::vector<std::shared_ptr<const ProductCopy>> taken;
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, storage] : records_) {
      if (auto copy = storage->product_copy.exchange(nullptr)) taken.push_back(std::move(copy));
    }
    return taken;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, const CardStorage*> records_;
};

Handles& handles() {
  static Handles* instance = new Handles();  // outlives every storage
  return *instance;
}

// For profiles with `profile_memory=True`: `bytes` more than before, negative if freed.
void report_memory(c10::DeviceIndex device, void* handle, int64_t bytes) {
  if (!c10::memoryProfilingEnabled()) {
    return;
  }
  const MemoryStats stats = driver(device).memory_stats();
  c10::reportMemoryUsageToProfiler(
      handle, bytes, static_cast<size_t>(stats.allocated_bytes.current),
      static_cast<size_t>(stats.reserved_bytes.current), c10::Device(c10::kPrivateUse1, device));
}

void delete_storage(void* context) {
  const std::unique_ptr<CardStorage> storage(static_cast<CardStorage*>(context));
  if (storage->lender) {
    handles().give_back(handle_of(storage->device, storage->address), storage.get(),
                        &card_storage(storage->lender));
  } else if (!is_bad_fork()) {  // in a forked child the card's locks may be held by nobody
    void* const handle = handle_of(storage->device, storage->address);
    handles().remove(handle);
    driver(storage->device).free(storage->address);
    report_memory(storage->device, handle, -storage->device_bytes);
    debug_log("free", storage->device, storage->device_bytes, " bytes");
  }
}

Address allocate_or_collect(c10::DeviceIndex device, int64_t bytes) {
  Driver& card = driver(device);
  const QueueId queue = current_queue(device);
  try {
    const WithoutPythonLock unlocked;
    return card.allocate(bytes, queue);
  } catch (const OutOfMemory&) {
    if (collect_garbage()) {
      collect_garbage()();
    }
    handles().take_product_copies();
  }
  const WithoutPythonLock unlocked;
  card.empty_cache();
  return translated([&] { return card.allocate(bytes, queue); });
}

bool is_dense(c10::IntArrayRef size, c10::IntArrayRef stride) {
  std::vector<size_t> order(size.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return stride[a] < stride[b]; });
  int64_t expected = 1;
  for (const size_t dim : order) {
    if (size[dim] == 0) {
      return true;
    }
    if (size[dim] == 1) {
      continue;
    }
    if (stride[dim] != expected) {
      return false;
    }
    expected *= size[dim];
  }
  return true;
}

}  // namespace

void set_collect_garbage(std::function<void()> collect) { collect_garbage() = std::move(collect); }

LayoutPtr default_layout(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype) {
  const DataFormat format = device_format(dtype);
  if (product(size) == 0) {  // nothing to place; strides of empty tensors may be anything
    return std::make_shared<SpyreTensorLayout>(SpyreTensorLayout::from_host({0}, format));
  }
  if (!is_dense(size, stride)) {
    return std::make_shared<SpyreTensorLayout>(
        SpyreTensorLayout::from_host({strided_reach(size, stride)}, format));
  }
  std::vector<int64_t> order(size.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  return std::make_shared<SpyreTensorLayout>(
      SpyreTensorLayout::from_host(size.vec(), stride.vec(), format, order));
}

void check_layout(const SpyreTensorLayout& layout, c10::ScalarType dtype, int64_t numel) {
  const DataFormat format = device_format(dtype);
  TORCH_CHECK_VALUE(layout.device_dtype() == format, "the layout holds ",
                    format_info(layout.device_dtype()).name, " but a tensor of dtype ",
                    c10::toString(dtype), " is held as ", format_info(format).name, ": ",
                    layout.to_string());
  TORCH_CHECK_VALUE(layout.element_arrangement() == ElementArrangement::STANDARD,
                    "tensors are held in the STANDARD element arrangement, the layout asks for ",
                    element_arrangement_name(layout.element_arrangement()));
  const std::string reason = layout.why_not_for(numel);
  TORCH_CHECK_VALUE(reason.empty(), "the layout does not fit a tensor of ", numel,
                    " elements: ", reason, ": ", layout.to_string());
}

LayoutPtr untyped_layout(int64_t bytes) {
  return std::make_shared<SpyreTensorLayout>(
      SpyreTensorLayout::from_host({bytes}, DataFormat::SENINT8));
}

c10::DataPtr allocate_storage(c10::DeviceIndex device, LayoutPtr layout, c10::ScalarType dtype,
                              int64_t numel) {
  device = checked_index(device);
  auto storage = std::make_unique<CardStorage>();
  storage->device = device;
  storage->device_bytes = std::max<int64_t>(layout->nbytes(), kStickBytes);
  storage->layout = std::move(layout);
  storage->dtype = dtype;
  storage->numel = numel;
  storage->address = allocate_or_collect(device, storage->device_bytes);
  debug_log("allocate", device, storage->device_bytes, " bytes, ", storage->layout->to_string());
  void* handle = handle_of(device, storage->address);
  handles().add(handle, storage.get());
  report_memory(device, handle, storage->device_bytes);
  return {handle, storage.release(), &delete_storage, c10::Device(c10::kPrivateUse1, device)};
}

c10::Storage make_storage(c10::DeviceIndex device, LayoutPtr layout, c10::ScalarType dtype,
                          int64_t numel) {
  const size_t itemsize = dtype == c10::ScalarType::Undefined ? 1 : c10::elementSize(dtype);
  const size_t nbytes = static_cast<size_t>(numel) * itemsize;
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes,
                      allocate_storage(device, std::move(layout), dtype, numel),
                      &device_allocator(), /*resizable=*/true);
}

c10::Storage borrow_storage(const c10::Storage& lender, LayoutPtr layout, int64_t numel) {
  const CardStorage& owner = card_storage(lender);
  check_layout(*layout, owner.dtype, numel);
  TORCH_CHECK_VALUE(layout->nbytes() <= owner.device_bytes, "the layout needs ", layout->nbytes(),
                    " bytes, the block to be shared has ", owner.device_bytes, ": ",
                    layout->to_string());
  auto storage = std::make_unique<CardStorage>();
  storage->device = owner.device;
  storage->address = owner.address;
  storage->device_bytes = owner.device_bytes;
  storage->layout = std::move(layout);
  storage->dtype = owner.dtype;
  storage->numel = numel;
  storage->lender = lender;
  void* handle = handle_of(owner.device, owner.address);
  handles().add(handle, storage.get());
  const size_t nbytes = static_cast<size_t>(numel) * c10::elementSize(owner.dtype);
  c10::DataPtr data(handle, storage.release(), &delete_storage,
                    c10::Device(c10::kPrivateUse1, owner.device));
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, std::move(data), &device_allocator(),
                      /*resizable=*/true);
}

namespace {

const CardStorage* find_storage(const c10::DataPtr& data) {
  if (data.get_deleter() == &delete_storage) {
    return static_cast<const CardStorage*>(data.get_context());
  }
  return handles().find(data.get());
}

}  // namespace

bool is_card_storage(const c10::Storage& storage) {
  return find_storage(storage.data_ptr()) != nullptr;
}

void note_write(const c10::Storage& storage) { ++card_storage(storage).writes; }

void record_use(const c10::DataPtr& data, const c10::Stream& stream) {
  const CardStorage& storage = card_storage(data);
  TORCH_CHECK(stream.device_index() == storage.device,
              "a tensor on spyre:", static_cast<int>(storage.device),
              " can't be used on a stream of ", stream.device());
  driver(storage.device).record_use(storage.address, queue_of(stream));
}

namespace {

std::mutex threads_mutex;
int threads_known = 0;  // alive, and have looked at a storage

// A thread that has ended holds no record any more, so it counts no longer: loaders that read
// checkpoints with a few threads leave the process as it was.
struct KnownThread {
  KnownThread() {
    const WithoutPythonLock unlocked;  // the one that is at work alone may need it
    const std::lock_guard lock(threads_mutex);
    ++threads_known;
  }
  ~KnownThread() {
    const std::lock_guard lock(threads_mutex);
    --threads_known;
  }
  KnownThread(const KnownThread&) = delete;
  KnownThread& operator=(const KnownThread&) = delete;
};

// Waits while another thread is at work as the only one.
void make_known() { thread_local const KnownThread self; }

}  // namespace

void while_only_thread(const std::function<void()>& work) {
  make_known();
  const std::lock_guard lock(threads_mutex);
  if (threads_known == 1) work();
}

const CardStorage& card_storage(const c10::DataPtr& data) {
  make_known();
  const CardStorage* storage = find_storage(data);
  TORCH_CHECK(storage != nullptr,
              "this storage is not backed by card memory: it was not made by the spyre allocator");
  return *storage;
}

const CardStorage& card_storage(const c10::Storage& storage) {
  return card_storage(storage.data_ptr());
}

}  // namespace spyre
