#include "runtime/copy.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <c10/util/strides.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "runtime/activity.h"
#include "runtime/cards.h"
#include "runtime/dtypes.h"
#include "runtime/errors.h"
#include "runtime/log.h"
#include "runtime/operation.h"
#include "runtime/pinned.h"
#include "runtime/planner.h"
#include "runtime/staging.h"
#include "runtime/stream.h"
#include "runtime/view.h"

namespace spyre {
namespace {

// The storages that this thread may read before they were written, innermost last.
thread_local std::vector<const c10::StorageImpl*> undefined_allowed;

Keepalive keep(const c10::Storage& storage) { return std::make_shared<c10::Storage>(storage); }

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

std::shared_ptr<const DmaDescriptor> transfer(const CardView& view, const at::Tensor& host,
                                              bool fill_padding) {
  auto how = cached_transfer(view, host.scalar_type(), host.strides(), fill_padding);
  TORCH_INTERNAL_ASSERT(how->device_bytes <= view.bytes);
  return how;
}

void record(Activity::Kind kind, int64_t asked, const CardView& view, int64_t bytes,
            const Ticket& ticket) {
  if (asked == 0) {
    return;
  }
  const bool is_to_card = kind == Activity::Kind::ToCard;
  Activity activity;
  activity.kind = kind;
  activity.asked = asked;
  activity.name = is_to_card ? "Memcpy HtoD" : "Memcpy DtoH";
  activity.device = view.storage->device;
  activity.queue = ticket.queue;
  (is_to_card ? activity.bytes_written : activity.bytes_read) = bytes;
  record_activity(std::move(activity), ticket);
}

// `non_blocking` is honoured for pinned memory, whose owner promised to leave it alone.
void finish(const char* what, const CardView& view, const at::Tensor& host, Ticket ticket,
            bool non_blocking) {
  debug_log(what, view.storage->device, describe(host), " ", view.storage->layout->to_string());
  if (!(non_blocking && is_pinned(host.const_data_ptr()))) {
    wait_for(view.storage->device, ticket);
  }
}

// `card` and `host` have the same size and dtype; the host tensor may have any strides.
void host_to_card(const at::Tensor& host, const at::Tensor& card, bool non_blocking) {
  const CardView view = view_of(card, Frame::Element);
  const auto how = transfer(view, host, covers_storage(card));
  const int64_t asked = host_now();
  const Ticket ticket = translated([&] {
    return driver(view.storage->device)
        .copy_to_card(current_queue(view.storage->device), view.address, how, host.const_data_ptr(),
                      keep(host.storage()));
  });
  note_write(card.storage());
  record(Activity::Kind::ToCard, asked, view, how->host_bytes, ticket);
  finish("copy to card", view, host, ticket, non_blocking);
}

// Zeros where a tensor that covers its storage has no elements.
void fill_padding(const at::Tensor& card) {
  const CardView view = view_of(card, Frame::Element);
  const auto whole = cached_transfer(view, card.scalar_type(), card.strides(), true);
  auto how = std::make_shared<DmaDescriptor>(*whole);
  std::erase_if(how->nests, [](const DmaNest& nest) { return !nest.is_padding; });
  if (how->nests.empty()) {
    return;
  }
  translated([&] {
    return driver(view.storage->device)
        .copy_to_card(current_queue(view.storage->device), view.address, how, nullptr,
                      keep(card.storage()));
  });
}

// The same, with a conversion to the card tensor's dtype on the host: of a large tensor, a piece at
// a time, so that it never lies on the host a second time.
void converted_to_card(const at::Tensor& host, const at::Tensor& card, bool non_blocking) {
  const auto dtype = card.scalar_type();
  const auto bytes = static_cast<int64_t>(card.itemsize()) * card.numel();
  if (host.scalar_type() == dtype || bytes <= kSmallBytes) {
    host_to_card(host.to(dtype), card, non_blocking);
    return;
  }
  const auto strides = card.strides();
  const auto outermost = std::max_element(strides.begin(), strides.end()) - strides.begin();
  const int64_t length = card.size(outermost);
  if (bytes / length > kStagingBytes) {  // few and long
    for (int64_t i = 0; i < length; ++i) {
      converted_to_card(host.select(outermost, i), card.select(outermost, i), false);
    }
  } else {
    const int64_t stick = card_storage(card.storage()).layout->elems_per_stick();
    int64_t step = kStagingBytes * length / bytes;
    step = step < stick ? step : step / stick * stick;  // whole sticks, should they lie that way
    for (int64_t first = 0; first < length; first += step) {
      const int64_t count = std::min(step, length - first);
      host_to_card(staged(host.narrow(outermost, first, count), dtype),
                   card.narrow(outermost, first, count), false);
    }
  }
  if (covers_storage(card)) {
    fill_padding(card);
  }
}

// A large result is fresh memory most of the time, and faulting it in page by page takes longer
// than the copy itself: ask for huge pages. A hint that the host may ignore.
void expect_large_write(void* data, int64_t bytes) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end =
      (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (end > begin + kHugePage) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
}

// The same transfer, but checked mode lets pass what was never written.
std::shared_ptr<const DmaDescriptor> allowing_undefined(const DmaDescriptor& how) {
  auto allowing = std::make_shared<DmaDescriptor>(how);
  allowing->allows_undefined = true;
  return allowing;
}

void card_to_host(const at::Tensor& card, const at::Tensor& host, bool non_blocking) {
  const CardView view = view_of(card, Frame::Element);
  auto how = transfer(view, host, false);
  if (std::count(undefined_allowed.begin(), undefined_allowed.end(),
                 card.storage().unsafeGetStorageImpl()) != 0) {
    how = allowing_undefined(*how);
  }
  expect_large_write(host.mutable_data_ptr(), how->host_bytes);
  const int64_t asked = host_now();
  const Ticket ticket = translated([&] {
    return driver(view.storage->device)
        .copy_to_host(current_queue(view.storage->device), view.address, how,
                      host.mutable_data_ptr(), keep(host.storage()));
  });
  record(Activity::Kind::ToHost, asked, view, how->host_bytes, ticket);
  finish("copy to host", view, host, ticket, non_blocking);
}

at::Tensor host_like(const at::Tensor& tensor, bool pinned = false) {
  auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU);
  return at::empty(tensor.sizes(), pinned ? options.pinned_memory(true) : options);
}

// A blocking read as a dense CPU tensor of the tensor's own dtype.
at::Tensor to_host(const at::Tensor& card) {
  at::Tensor host = host_like(card);
  if (host.numel() != 0) {
    card_to_host(card, host, false);
  }
  return host;
}

// The storage under its own dtype, flat.
at::Tensor image_view(const c10::Storage& storage) {
  const CardStorage& record = card_storage(storage);
  const auto dtype = record.is_untyped() ? c10::ScalarType::Char : record.dtype;
  at::Tensor flat = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  flat.unsafeGetTensorImpl()->set_sizes_contiguous({record.numel});
  return flat;
}

// The elements that `tensor` names in the host image of its storage.
at::Tensor select_from_image(const at::Tensor& image, const at::Tensor& tensor) {
  const auto itemsize = static_cast<int64_t>(tensor.itemsize());
  at::Tensor bytes = image.view(at::kByte);
  const int64_t whole = bytes.numel() / itemsize * itemsize;
  return bytes.narrow(0, 0, whole)
      .view(tensor.scalar_type())
      .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

// Whole storages as bytes: what UntypedStorage.copy_ (and with it clone, deepcopy, save and load)
// asks for. Between cards' storages the layout goes along.
bool is_whole_image(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kByte && tensor.is_contiguous() &&
         tensor.storage_offset() == 0 &&
         tensor.numel() == static_cast<int64_t>(tensor.storage().nbytes());
}

bool copy_between_storages(const at::Tensor& from, const at::Tensor& to) {
  const CardStorage& source = card_storage(from.storage());
  if (!card_storage(to.storage()).is_untyped() || !is_whole_image(from) || !is_whole_image(to)) {
    return false;
  }
  replace_storage(to.storage(), source.layout, source.dtype, source.numel, /*keep=*/false);
  copy_tensor(image_view(from.storage()), image_view(to.storage()), false);
  return true;
}

// The values that a tensor with a pending negation or conjugation means. On the card PyTorch's own
// way would come back here.
at::Tensor resolved(const at::Tensor& tensor) {
  if (tensor.device().is_privateuseone()) {
    return tensor.is_neg() ? tensor._neg_view().neg() : tensor;
  }
  return tensor.resolve_conj().resolve_neg();
}

void copy_on_cards(const at::Tensor& from, const at::Tensor& to) {
  if (from.device() == to.device()) {
    run_operation("spyre::copy", {to, from});
    return;
  }
  host_to_card(to_host(from).to(to.scalar_type()), to, false);  // cards meet on the host
}

}  // namespace

void copy_tensor(const at::Tensor& source, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) {
    return;
  }
  at::assert_no_internal_overlap(to);
  const at::Tensor plain = resolved(source);
  const at::Tensor from = plain.is_same_size(to) ? plain : plain.expand(to.sizes());
  const bool from_card = from.device().is_privateuseone();
  const bool to_card = to.device().is_privateuseone();
  if (from_card && to_card && copy_between_storages(from, to)) {
    return;
  }
  if (to.is_neg() || to.is_conj()) {  // what is stored is not what is meant
    at::Tensor values = from.cpu();
    if (to_card) {
      values = values.to(to.scalar_type()).neg();
      copy_tensor(values, to._neg_view(), non_blocking);
    } else {
      to.copy_(values);
    }
    return;
  }
  if (from_card && is_reinterpreted(from)) {
    to.copy_(select_from_image(read_image(from.storage()), from));
  } else if (to_card && is_reinterpreted(to)) {
    const at::Tensor image = read_image(to.storage());
    select_from_image(image, to).copy_(from);
    write_image(to.storage(), image);
  } else if (from_card && to_card) {
    copy_on_cards(from, to);
  } else if (to_card) {
    converted_to_card(from, to, non_blocking);
  } else if (from.scalar_type() == to.scalar_type()) {
    card_to_host(from, to, non_blocking);
  } else {
    to.copy_(to_host(from));
  }
}

UndefinedAllowed::UndefinedAllowed(const c10::Storage& storage) {
  undefined_allowed.push_back(storage.unsafeGetStorageImpl());
}
UndefinedAllowed::~UndefinedAllowed() { undefined_allowed.pop_back(); }

at::Tensor read_image(const c10::Storage& storage) {
  const UndefinedAllowed allowed(storage);
  return to_host(image_view(storage));
}

void write_image(const c10::Storage& storage, const at::Tensor& image) {
  const at::Tensor flat = image_view(storage);
  if (flat.numel() != 0) {
    host_to_card(image, flat, false);
    card_storage(storage).is_written = true;
  }
}

void replace_storage(const c10::Storage& storage, LayoutPtr layout, c10::ScalarType dtype,
                     int64_t numel, bool keep) {
  const CardStorage& before = card_storage(storage);
  TORCH_CHECK(before.exchanges == 0, "a tensor can't get other memory while a collective that it ",
              "takes part in is under way: wait() for that first");
  c10::DataPtr block = allocate_storage(before.device, std::move(layout), dtype, numel);
  const size_t itemsize = dtype == c10::ScalarType::Undefined ? 1 : c10::elementSize(dtype);
  if (keep && before.numel != 0 && numel != 0) {
    const c10::Storage fresh(c10::Storage::use_byte_size_t(), numel * itemsize, std::move(block),
                             storage.allocator(), true);
    if (before.dtype == dtype) {
      const int64_t common = std::min(before.numel, numel);
      copy_tensor(image_view(storage).narrow(0, 0, common), image_view(fresh).narrow(0, 0, common),
                  false);
    } else {  // the same bytes under another type
      const at::Tensor image = read_image(fresh);
      const at::Tensor bytes = read_image(storage).view(at::kByte);
      const int64_t common = std::min(bytes.numel(), image.view(at::kByte).numel());
      image.view(at::kByte).narrow(0, 0, common).copy_(bytes.narrow(0, 0, common));
      write_image(fresh, image);
    }
    block = std::move(fresh.mutable_data_ptr());
    // The old block was allocated for another stream, perhaps: it must not be reused before the
    // copy that was just queued on this one.
    driver(before.device).record_use(before.address, current_queue(before.device));
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(block));
  storage.unsafeGetStorageImpl()->set_nbytes(numel * itemsize);
}

void set_layout(const at::Tensor& tensor, const SpyreTensorLayout& layout) {
  const CardStorage& record = card_storage(tensor.storage());
  TORCH_CHECK_VALUE(!is_reinterpreted(tensor) && covers_storage(tensor),
                    "a layout describes a whole storage, and this tensor of size ", tensor.sizes(),
                    " is a view of one of ", record.numel,
                    " elements; set the layout of the tensor it is a view of, or clone it first");
  check_layout(layout, tensor.scalar_type(), record.numel);
  if (layout != *record.layout) {
    replace_storage(tensor.storage(), std::make_shared<SpyreTensorLayout>(layout), record.dtype,
                    record.numel, /*keep=*/true);
  }
}

namespace {

// Do all int64 values in a storage of bytes fit 32 bits? PyTorch's old checkpoints set tensors to
// storages that will only be filled later: what doesn't fit stays as bytes, and is an error when
// something is computed with it.
bool fits_the_card(const c10::Storage& storage, int64_t numel) {
  const at::Tensor values = read_image(storage)
                                .narrow(0, 0, numel * static_cast<int64_t>(sizeof(int64_t)))
                                .view(at::kLong);
  return values.eq(values.to(at::kInt)).all().item<bool>();
}

}  // namespace

void adopt_dtype(const at::Tensor& tensor) {
  const CardStorage& record = card_storage(tensor.storage());
  if (!record.is_untyped() || record.numel == 0) {
    return;
  }
  const auto dtype = tensor.scalar_type();
  const auto itemsize = static_cast<int64_t>(tensor.itemsize());
  const int64_t numel = record.numel / itemsize;
  if (dtype == at::kLong && record.is_written && !fits_the_card(tensor.storage(), numel)) {
    return;
  }
  const bool is_whole = tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
                        tensor.numel() == numel;
  replace_storage(tensor.storage(),
                  is_whole ? default_layout(tensor.sizes(), tensor.strides(), dtype)
                           : default_layout({numel}, {1}, dtype),
                  dtype, numel, /*keep=*/record.is_written);
}

at::Tensor materialize(const at::Tensor& tensor) {
  at::Tensor values = make_tensor(tensor.sizes(), c10::contiguous_strides(tensor.sizes()),
                                  tensor.scalar_type(), tensor.device().index());
  copy_tensor(tensor, values, false);
  return values;
}

}  // namespace spyre
