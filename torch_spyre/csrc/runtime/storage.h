// What stands behind the storage of a Spyre tensor: a block of card memory and its tiled layout.
//
// The layout belongs to the storage, not to the tensor: all views share it, and it survives
// detach, `.data`, `set_` and `view(dtype)`. PyTorch's own `TensorImpl` is enough on top of it.
//
// A storage's *host image* is what PyTorch believes it holds: `numel` elements of `dtype` in host
// order. Element `o` of the image lies at `layout->device_offset(o)` on the card.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "card/driver.h"
#include "layout/layout.h"

namespace spyre {

using LayoutPtr = std::shared_ptr<const SpyreTensorLayout>;
struct ProductCopy;  // runtime/weights.h

// What eager operations have used a storage for, as far as its layout depends on it.
enum class Use : uint8_t {
  Unknown,
  Table,    // rows are looked up: it keeps its layout, products get a copy
  Settled,  // its layout was decided on
};

struct CardStorage {
  c10::DeviceIndex device = -1;
  Address address = 0;
  int64_t device_bytes = 0;
  LayoutPtr layout;
  // Undefined: bytes whose dtype is not known yet (an UntypedStorage). The first typed tensor set
  // to the storage decides.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  int64_t numel = 0;  // elements of the host image; bytes while the dtype is not known
  mutable bool is_written = false;  // untyped: has anybody put bytes there?
  mutable std::atomic<Use> use = Use::Unknown;
  mutable std::atomic<int> exchanges = 0;   // with other cards, under way: it stays where it is
  mutable std::atomic<int64_t> writes = 0;  // queued so far, by whatever way
  mutable std::atomic<std::shared_ptr<const ProductCopy>> product_copy;
  c10::Storage lender;  // whose block it is, if not its own

  bool is_untyped() const { return dtype == c10::ScalarType::Undefined; }
};

// The layout that a new tensor gets: layouts.md's default for dense strides; a flat one for
// strides with gaps or overlaps, where the tensor is a view of a one-dimensional storage.
LayoutPtr default_layout(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype);

// Throws c10::ValueError unless the layout holds `numel` elements of the dtype.
void check_layout(const SpyreTensorLayout& layout, c10::ScalarType dtype, int64_t numel);

// A layout for `bytes` bytes of unknown type.
LayoutPtr untyped_layout(int64_t bytes);

// Allocates card memory on the device's current stream. Throws torch.OutOfMemoryError.
c10::DataPtr allocate_storage(c10::DeviceIndex device, LayoutPtr layout, c10::ScalarType dtype,
                              int64_t numel);

// A whole StorageImpl around it; `nbytes` is the size of the host image.
c10::Storage make_storage(c10::DeviceIndex device, LayoutPtr layout, c10::ScalarType dtype,
                          int64_t numel);

// A storage in the block of another one, which it keeps alive: the same dtype, but a layout and a
// size of its own. PyTorch does not know that the two share memory. Throws c10::ValueError for a
// layout that does not fit in the block.
c10::Storage borrow_storage(const c10::Storage& lender, LayoutPtr layout, int64_t numel);

// False for the storages of fake tensors, which name the device but hold nothing.
bool is_card_storage(const c10::Storage& storage);

// Work that writes to the tensor's storage has just been queued. Everybody who queues some says so.
void note_write(const c10::Storage& storage);

// The block is also used on that stream: once freed, it is reused after what is queued there.
void record_use(const c10::DataPtr& data, const c10::Stream& stream);

// The record behind a Spyre storage. Throws for a storage that is not ours.
const CardStorage& card_storage(const c10::Storage& storage);
const CardStorage& card_storage(const c10::DataPtr& data);

// Does the work if no living thread but this one has looked at a storage's record; until it is
// done, none will. Only then may a storage get another block without its users knowing.
void while_only_thread(const std::function<void()>& work);

}  // namespace spyre
