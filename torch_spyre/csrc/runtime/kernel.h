// A compiled kernel: a card program, and the views of its arguments that it was compiled for.
//
// The compiler knows an argument's layout, size and strides, but not where in its storage it
// starts: nobody guards that. It compiles as if each view started at element 0, and a launch puts
// the address of the element where it does start there. That is the same walk as long as no digit
// of a host offset carries when the start is added (`layout.h`: an offset is a number in mixed
// radix) and the start is that of a stick. Where it is not, the launch goes through a copy that
// does start at element 0. So do written views that share a stick with elements outside them: a
// kernel writes whole sticks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/card_program.h"
#include "runtime/storage.h"

namespace spyre {

// What the compiler knew of an argument.
struct ArgView {
  std::vector<int64_t> size;    // of the view, on the host
  std::vector<int64_t> stride;  // in host elements
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  LayoutPtr layout;         // of the storage
  bool is_written = false;  // by the kernel
  int64_t bytes = 0;        // of the card's memory that the kernel relies on, from its start
};

// Where a view may start without changing how its elements lie relative to the first one.
class ViewFrame {
 public:
  explicit ViewFrame(const ArgView& view);

  int64_t reach() const { return reach_; }  // elements from the first to the last one

  // Is device_offset(start + d) == device_offset(start) + device_offset(d) for every d that the
  // view names, and device_offset(start) that of a stick?
  bool holds_at(int64_t start, const SpyreTensorLayout& layout) const;

  // May whole sticks be written, in a storage of `numel` elements?
  bool owns_sticks(int64_t numel) const { return owns_sticks_ || (is_dense_ && reach_ == numel); }

 private:
  // A place of the layout, and the most that the view's offsets leave over below it.
  struct Place {
    int64_t stride;
    int64_t most;
  };
  std::vector<Place> places_;  // largest stride first
  int64_t reach_ = 0;
  bool is_dense_ = false;     // names every element of its reach
  bool owns_sticks_ = false;  // names every element of the sticks that it touches
};

// Immutable; launched from any thread.
class Kernel {
 public:
  // The program's symbols are an address per view, one of the pool if there is one, and extents.
  // Throws c10::ValueError for views that can't be.
  Kernel(std::string program, std::vector<ArgView> views, int64_t pool_bytes, int64_t extents,
         ProgramNames names);

  // The same program under the name, and with the steps, that it has elsewhere in a model.
  // Throws c10::ValueError unless there is a label for each step.
  Kernel labelled(std::string name, StepLabels labels) const;

  // Queues the kernel on the current stream of the tensors' device. A tensor stands for the place
  // where it starts; size and strides are those of the view. Throws for a tensor that is not on
  // the card, or whose storage is not laid out as compiled.
  void launch(c10::ArrayRef<at::Tensor> tensors, c10::IntArrayRef extents) const;

  // Loads the program, so that the first launch doesn't have to; its number on the card.
  ProgramId load(c10::DeviceIndex device) const { return program_->loaded(device); }

  const std::string& name() const { return name_; }
  const std::string& program() const { return program_->bytes; }
  const std::vector<ArgView>& views() const { return views_; }
  int64_t pool_bytes() const { return pool_bytes_; }
  int64_t extents() const { return extents_; }

 private:
  struct Copies;

  c10::DeviceIndex common_device(c10::ArrayRef<at::Tensor> tensors) const;
  Binding bind(size_t index, const at::Tensor& tensor, Copies& copies) const;
  void check_storage(size_t index, const CardStorage& storage, int64_t start) const;
  std::string argument(size_t index) const;  // for messages

  std::shared_ptr<CardProgram> program_;  // of all that are labelled alike
  std::string name_;
  std::shared_ptr<const StepLabels> labels_;
  std::vector<ArgView> views_;
  std::vector<ViewFrame> frames_;  // of the views
  int64_t pool_bytes_;
  LayoutPtr pool_layout_;
  int64_t extents_;
};

// A new tensor of this layout. Layouts are remembered, so that a program that keeps allocating
// the same few does not build them anew.
at::Tensor empty_strided_with_layout(c10::IntArrayRef size, c10::IntArrayRef stride,
                                     c10::ScalarType dtype, c10::DeviceIndex device,
                                     c10::IntArrayRef device_size, c10::IntArrayRef stride_map);

}  // namespace spyre
