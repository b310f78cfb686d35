#include "runtime/kernel.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "runtime/copy.h"
#include "runtime/dtypes.h"
#include "runtime/strides.h"
#include "runtime/view.h"

namespace spyre {

// ---- ViewFrame --------------------------------------------------------------------------------

namespace {

struct Dim {
  int64_t stride;
  int64_t most;  // what the dimension adds to an offset, at most
};

std::vector<Dim> moving_dims(const ArgView& view) {
  std::vector<Dim> dims;
  for (size_t dim = 0; dim < view.size.size(); ++dim) {
    if (view.size[dim] > 1 && view.stride[dim] != 0) {
      dims.push_back({view.stride[dim], (view.size[dim] - 1) * view.stride[dim]});
    }
  }
  return dims;
}

// The strides at which digits change, largest first.
std::vector<int64_t> place_strides(const SpyreTensorLayout& layout) {
  std::vector<int64_t> strides;
  for (size_t dim = 0; dim < layout.stride_map().size(); ++dim) {
    if (layout.stride_map()[dim] > 0 && layout.device_size()[dim] > 1) {
      strides.push_back(layout.stride_map()[dim]);
    }
  }
  std::sort(strides.begin(), strides.end(), std::greater<>());
  return strides;
}

// How many elements in a row, along the sticks, the view names: dimensions that continue each
// other count as one.
int64_t run_along_sticks(const ArgView& view) {
  const int64_t step = view.layout->stride_map().back();
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t dim = 0; dim < view.size.size(); ++dim) {
    if (view.size[dim] > 1) {
      dims.emplace_back(view.stride[dim], view.size[dim]);
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t run = 1;
  for (const auto& [stride, size] : dims) {
    if (stride == step * run) {
      run *= size;
    }
  }
  return run;
}

// Whether every stick that the view touches is its own: no lane of it holds an element outside the
// view. False if that can't be told from the layout alone.
bool names_whole_sticks(const ArgView& view) {
  const SpyreTensorLayout& layout = *view.layout;
  const int64_t step = layout.stride_map().back();
  if (step <= 0) {
    return true;  // one element per stick
  }
  const int64_t lanes = layout.elems_per_stick();
  const int64_t run = run_along_sticks(view);
  int64_t row = 0;  // elements along the sticks until the next larger digit changes; 0: no end
  for (const int64_t stride : place_strides(layout)) {
    if (stride > step && stride != step * lanes) {
      row = (stride + step - 1) / step;
    }
  }
  if (row == 0 || run < row) {
    return run % lanes == 0;
  }
  return run % row == 0;
}

}  // namespace

// Below a place, an offset's remainder is the sum of what those dimensions add that do not move in
// whole steps of the place, unless that sum wraps around: then it may be anything. After a wrap
// the next place can still be told from the same dimensions if it divides this one.
ViewFrame::ViewFrame(const ArgView& view)
    : reach_(strided_reach(view.size, view.stride)),
      is_dense_(product(view.size) == reach_),
      owns_sticks_(names_whole_sticks(view)) {
  std::vector<Dim> dims = moving_dims(view);
  int64_t above = 0;  // the place before, if its remainder may wrap; else 0
  bool is_lost = false;
  for (const int64_t stride : place_strides(*view.layout)) {
    is_lost |= above != 0 && above % stride != 0;
    std::erase_if(dims, [&](const Dim& dim) { return dim.stride % stride == 0; });
    int64_t most = 0;
    for (const Dim& dim : dims) {
      most += dim.most;
    }
    const bool wraps = is_lost || most >= stride;
    places_.push_back({stride, wraps ? stride - 1 : most});
    above = wraps ? stride : 0;
  }
}

bool ViewFrame::holds_at(int64_t start, const SpyreTensorLayout& layout) const {
  int64_t rest = start;
  for (const Place& place : places_) {
    rest %= place.stride;
    if (rest + place.most >= place.stride) {
      return false;
    }
  }
  return layout.device_offset(start) % layout.elems_per_stick() == 0;
}

// ---- Kernel -----------------------------------------------------------------------------------

// Arguments that can't be used where they are, and the copies that stand in for them.
struct Kernel::Copies {
  struct Copy {
    at::Tensor original;  // both under the view's size and strides
    at::Tensor aligned;
    bool is_written;
  };
  std::vector<Copy> all;

  // Two arguments may be the same view: they stay one.
  const at::Tensor& of(const ArgView& view, const at::Tensor& tensor) {
    const at::Tensor original =
        at::as_strided(tensor.detach(), view.size, view.stride, tensor.storage_offset());
    for (Copy& copy : all) {
      if (copy.original.is_alias_of(original) &&
          copy.original.storage_offset() == original.storage_offset() &&
          copy.original.sizes() == original.sizes() &&
          copy.original.strides() == original.strides() &&
          copy.original.scalar_type() == original.scalar_type()) {
        copy.is_written |= view.is_written;
        return copy.aligned;
      }
    }
    const CardStorage& storage = card_storage(tensor.storage());
    const bool is_alike = !is_reinterpreted(tensor) && *storage.layout == *view.layout;
    const int64_t numel = is_alike ? storage.numel : strided_reach(view.size, view.stride);
    at::Tensor aligned = at::detail::make_tensor<c10::TensorImpl>(
        make_storage(storage.device, view.layout, view.dtype, numel),
        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(view.dtype));
    aligned.unsafeGetTensorImpl()->set_sizes_and_strides(view.size, view.stride);
    copy_tensor(distinct(original), distinct(aligned), false);
    all.push_back({original, aligned, view.is_written});
    return all.back().aligned;
  }

  void write_back() const {
    for (const Copy& copy : all) {
      if (copy.is_written) {
        copy_tensor(distinct(copy.aligned), distinct(copy.original), false);
      }
    }
  }

 private:
  // A repeated dimension (stride 0) names the same elements again: once is enough.
  static at::Tensor distinct(at::Tensor tensor) {
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) {
        tensor = tensor.narrow(dim, 0, 1);
      }
    }
    return tensor;
  }
};

Kernel::Kernel(std::string program, std::vector<ArgView> views, int64_t pool_bytes, int64_t extents,
               ProgramNames names)
    : program_(std::make_shared<CardProgram>()),
      name_(names.kernel),
      views_(std::move(views)),
      pool_bytes_(pool_bytes),
      extents_(extents) {
  program_->bytes = std::move(program);
  program_->names = std::move(names);
  TORCH_CHECK_VALUE(pool_bytes >= 0 && extents >= 0, "kernel ", name(),
                    ": pool_bytes and extents can't be negative");
  if (pool_bytes > 0) {
    pool_layout_ = untyped_layout(pool_bytes);
  }
  for (size_t index = 0; index < views_.size(); ++index) {
    const ArgView& view = views_[index];
    TORCH_CHECK_VALUE(view.size.size() == view.stride.size(), argument(index), ": size ",
                      c10::IntArrayRef(view.size), " and stride ", c10::IntArrayRef(view.stride),
                      " differ in rank");
    for (size_t dim = 0; dim < view.size.size(); ++dim) {
      TORCH_CHECK_VALUE(view.size[dim] >= 0 && view.stride[dim] >= 0, argument(index),
                        ": size and stride can't be negative");
    }
    check_layout(*view.layout, view.dtype, strided_reach(view.size, view.stride));
    frames_.emplace_back(view);
  }
}

Kernel Kernel::labelled(std::string name, StepLabels labels) const {
  const size_t steps = program_->names.steps.size();
  TORCH_CHECK_VALUE(labels.size() == steps, "kernel ", name, ": ", labels.size(), " labels for ",
                    steps, " steps");
  Kernel other(*this);
  other.name_ = std::move(name);
  other.labels_ = std::make_shared<const StepLabels>(std::move(labels));
  return other;
}

std::string Kernel::argument(size_t index) const {
  return "kernel " + name() + ", argument " + std::to_string(index);
}

c10::DeviceIndex Kernel::common_device(c10::ArrayRef<at::Tensor> tensors) const {
  TORCH_CHECK(tensors.size() == views_.size(), "kernel ", name(), " takes ", views_.size(),
              " tensors, ", tensors.size(), " were given");
  for (size_t index = 0; index < tensors.size(); ++index) {
    const at::Tensor& tensor = tensors[index];
    TORCH_CHECK_TYPE(tensor.defined(), argument(index), " is not a tensor");
    TORCH_CHECK_TYPE(!tensor.unsafeGetTensorImpl()->is_python_dispatch(), argument(index),
                     " is a fake tensor or another subclass without a storage on the card; a "
                     "kernel runs on real tensors");
    TORCH_CHECK(tensor.device().is_privateuseone(), argument(index),
                " is expected on a spyre device, but is on ", tensor.device());
    TORCH_CHECK(tensor.device() == tensors[0].device(), argument(index), " is on ", tensor.device(),
                ", argument 0 on ", tensors[0].device(), ": a kernel runs on one card");
  }
  return tensors.empty() ? current_device() : tensors[0].device().index();
}

void Kernel::check_storage(size_t index, const CardStorage& storage, int64_t start) const {
  const ArgView& view = views_[index];
  TORCH_CHECK(start + frames_[index].reach() <= storage.numel, argument(index),
              ": the compiled view of size ", c10::IntArrayRef(view.size), " and stride ",
              c10::IntArrayRef(view.stride), " from element ", start, " on leaves its storage of ",
              storage.numel, " elements");
}

Binding Kernel::bind(size_t index, const at::Tensor& tensor, Copies& copies) const {
  const ArgView& view = views_[index];
  TORCH_CHECK(tensor.scalar_type() == view.dtype, argument(index), " has dtype ", tensor.dtype(),
              ", the kernel was compiled for ", c10::toString(view.dtype));
  const CardStorage* storage = &card_storage(tensor.storage());
  int64_t skipped = 0;
  if (storage->dtype != view.dtype) {
    adopt_dtype(tensor);  // replaces an untyped storage, if it can
    storage = &card_storage(tensor.storage());
  }
  bool is_usable = storage->dtype == view.dtype;
  if (is_usable) check_storage(index, *storage, tensor.storage_offset());
  // Guards compile again for another layout where they see it; a backward graph's inputs and
  // merged arguments have none, and are copied to the layout that the compiler assumed.
  is_usable = is_usable && (storage->layout == view.layout || *storage->layout == *view.layout);
  if (is_usable) {
    const int64_t start = tensor.storage_offset();
    if (start != 0) {
      is_usable = frames_[index].holds_at(start, *view.layout);
      skipped = view.layout->device_offset(start) * element_bytes(view.layout->device_dtype());
    }
    is_usable = is_usable && storage->device_bytes - skipped >= view.bytes &&
                (!view.is_written || frames_[index].owns_sticks(storage->numel));
  }
  if (!is_usable) {
    storage = &card_storage(copies.of(view, tensor).storage());
    skipped = 0;
  }
  TORCH_CHECK(storage->device_bytes - skipped >= view.bytes, argument(index), ": the kernel uses ",
              view.bytes, " bytes, its layout has ", storage->device_bytes);
  return {storage->address + static_cast<Address>(skipped), storage->device_bytes - skipped};
}

void Kernel::launch(c10::ArrayRef<at::Tensor> tensors, c10::IntArrayRef extents) const {
  const c10::DeviceIndex device = common_device(tensors);
  TORCH_CHECK(static_cast<int64_t>(extents.size()) == extents_, "kernel ", name(), " takes ",
              extents_, " extents, ", extents.size(), " were given");
  c10::SmallVector<Binding, 16> bindings;
  bindings.reserve(tensors.size() + 1 + extents.size());
  Copies copies;
  for (size_t index = 0; index < tensors.size(); ++index) {
    bindings.push_back(bind(index, tensors[index], copies));
  }
  c10::DataPtr pool;
  if (pool_bytes_ > 0) {
    pool = allocate_storage(device, pool_layout_, c10::ScalarType::Undefined, pool_bytes_);
    bindings.push_back({card_storage(pool).address, pool_layout_->nbytes()});
  }
  for (const int64_t extent : extents) {
    TORCH_CHECK_VALUE(extent >= 0, "kernel ", name(), ": an extent of ", extent,
                      " is given; lengths can't be negative");
    bindings.push_back({static_cast<uint64_t>(extent), 0});
  }
  program_->launch(device, std::span<const Binding>(bindings.data(), bindings.size()), name_,
                   labels_);
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (views_[index].is_written) note_write(tensors[index].storage());
  }
  copies.write_back();
}

// ---- Allocation -------------------------------------------------------------------------------

namespace {

class Layouts {
 public:
  LayoutPtr get(c10::IntArrayRef device_size, c10::IntArrayRef stride_map, DataFormat format) {
    std::string key;
    key.reserve(192);
    append_key(key, device_size);
    append_key(key, stride_map);
    append_key(key, static_cast<int64_t>(format));
    const std::lock_guard lock(mutex_);
    LayoutPtr& layout = known_[key];
    if (!layout) {
      layout = std::make_shared<SpyreTensorLayout>(device_size.vec(), stride_map.vec(), format);
    }
    return layout;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, LayoutPtr> known_;
};

}  // namespace

at::Tensor empty_strided_with_layout(c10::IntArrayRef size, c10::IntArrayRef stride,
                                     c10::ScalarType dtype, c10::DeviceIndex device,
                                     c10::IntArrayRef device_size, c10::IntArrayRef stride_map) {
  static Layouts* layouts = new Layouts();  // used by tensors that outlive statics
  TORCH_CHECK_VALUE(size.size() == stride.size(), "dimensionality of sizes (", size.size(),
                    ") must match dimensionality of strides (", stride.size(), ")");
  check_size(size);
  LayoutPtr layout = layouts->get(device_size, stride_map, device_format(dtype));
  check_layout(*layout, dtype, strided_reach(size, stride));
  return make_tensor(size, stride, dtype, device, std::move(layout));
}

}  // namespace spyre
