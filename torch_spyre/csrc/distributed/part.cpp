#include "distributed/part.h"

#include <ATen/MemoryOverlap.h>
#include <c10/util/strides.h>

#include "card/formats.h"
#include "runtime/cards.h"
#include "runtime/copy.h"
#include "runtime/planner.h"
#include "runtime/storage.h"
#include "runtime/view.h"

namespace spyre::distributed {
namespace {

// Integers of the width of an element: moving them moves its bits.
struct Bits {
  DataFormat device;
  c10::ScalarType host;
};

Bits bits_of(DataFormat format) {
  switch (element_bytes(format)) {
    case 1:
      return {DataFormat::SENINT8, c10::ScalarType::Char};
    case 2:
      return {DataFormat::SENINT16, c10::ScalarType::Short};
    default:
      return {DataFormat::IEEE_INT32, c10::ScalarType::Int};
  }
}

at::Tensor checked(const at::Tensor& tensor, Role role) {
  TORCH_CHECK_VALUE(
      tensor.defined() && tensor.device().is_privateuseone() && tensor.layout() == c10::kStrided,
      "spyreccl exchanges dense tensors on a spyre device, got ",
      tensor.defined() ? tensor.toString() : "an undefined tensor");
  if (role == Role::Input) {
    const at::Tensor plain = tensor.resolve_neg();
    return is_reinterpreted(plain) ? materialize(plain) : plain;
  }
  at::assert_no_internal_overlap(tensor);
  TORCH_CHECK_VALUE(!is_reinterpreted(tensor) && !tensor.is_neg(),
                    "spyreccl can't write to a view of a tensor under another dtype (here ",
                    tensor.scalar_type(), "); give it a tensor of its own and copy from there");
  return tensor;
}

}  // namespace

Part make_part(const at::Tensor& given, Role role) {
  const at::Tensor tensor = checked(given, role);
  Part part;
  part.storage = tensor.storage();
  part.device = tensor.device().index();
  part.dtype = tensor.scalar_type();
  part.numel = tensor.numel();
  part.format = card_storage(part.storage).layout->device_dtype();
  part.bytes = part.numel * element_bytes(part.format);
  if (part.numel == 0) {
    return part;
  }
  const CardView view = view_of(tensor, Frame::Element);
  const Bits bits = bits_of(part.format);
  auto how = std::make_shared<DmaDescriptor>(
      *cached_transfer(view, bits.host, c10::contiguous_strides(tensor.sizes()),
                       role == Role::Output && covers_storage(tensor)));
  how->device_format = bits.device;
  part.address = view.address;
  part.how = std::move(how);
  return part;
}

Pin::Pin(c10::Storage storage) : storage_(std::move(storage)) {
  ++card_storage(storage_).exchanges;
}

Pin::~Pin() {
  if (storage_) --card_storage(storage_).exchanges;
}

void read_part(const Part& part, std::byte* to) {
  if (part.how != nullptr) driver(part.device).read_now(part.address, *part.how, to);
}

void write_part(const Part& part, const std::byte* from) {
  if (part.how != nullptr) driver(part.device).write_now(part.address, *part.how, from);
}

}  // namespace spyre::distributed
