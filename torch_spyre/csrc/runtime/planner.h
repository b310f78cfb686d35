// The seam to the planner: how to do a thing, worked out once per signature and then remembered.
//
// Planning is Python (`torch_spyre.ir`, `torch_spyre.ops`); this side holds what it found, keyed by
// all that it depends on, so that a repeated operation never enters Python.
#pragma once

#include <ATen/core/ivalue.h>

#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "runtime/card_program.h"
#include "runtime/view.h"

namespace spyre {

// ---- What the planner is told -----------------------------------------------------------------

struct ViewSpec {
  CardView view;
  // The first argument with the same storage (itself, usually), and how many elements later in
  // the storage this one starts: one of two arguments that overlap may have to be copied first.
  int alias = 0;
  int64_t distance = 0;
};
struct ScalarSpec {
  c10::ScalarType dtype;
  bool is_wrapped;  // a Python number, which takes part in type promotion as such
  c10::Scalar value;
};
// Everything else stands for itself: None, bool, int, str, lists of numbers.
using ItemSpec = std::variant<ViewSpec, ScalarSpec, c10::IValue>;
// Tensors, None for an absent one. They are numbered on after the arguments, from `first` on.
struct ListSpec {
  size_t first = 0;
  std::vector<ItemSpec> items;
};
using ArgumentSpec = std::variant<ViewSpec, ScalarSpec, c10::IValue, ListSpec>;

// ---- What it answers --------------------------------------------------------------------------

// Where a symbol of the card program gets its value from at each launch.
struct SymbolSource {
  enum class Kind { Argument, Output, Temporary, Float, Int, SeedLow, SeedHigh, Counter };
  Kind kind = Kind::Argument;
  int64_t index = 0;  // which argument, output or counter; Temporary: byte offset into the pool
  double limit = std::numeric_limits<double>::infinity();  // Float: finite values stay within
  c10::ScalarType fits = c10::ScalarType::Undefined;       // Int: the dtype that must hold it
};

struct OutputSpec {
  static constexpr int kNew = -1;
  static constexpr int kUndefined = -2;
  int argument = kNew;  // returns this argument; kNew: a new tensor as below
  std::vector<int64_t> size;
  std::vector<int64_t> stride;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  LayoutPtr layout;
};

struct Resize {
  int argument = 0;
  std::vector<int64_t> size;
};

struct EagerLaunch {
  CardProgram program;
  std::vector<SymbolSource> symbols;
};

struct EagerPlan {
  bool is_unsupported = false;       // the card can't do it: the CPU has to
  std::deque<EagerLaunch> launches;  // in order; none: there is nothing to compute
  std::vector<OutputSpec> outputs;
  std::vector<Resize> resizes;  // `out=` tensors of another size; then plan again
  int64_t temporary_bytes = 0;
  int64_t random_numbers = 0;  // counters taken from the generator
};

class Planner {
 public:
  virtual ~Planner() = default;
  virtual std::shared_ptr<const EagerPlan> plan_operation(
      const std::string& name, const std::vector<ArgumentSpec>& arguments) = 0;
  // A copy between host and card; `host_stride` counts host elements.
  virtual std::vector<DmaNest> plan_transfer(const CardView& view, c10::IntArrayRef host_stride,
                                             bool fill_padding) = 0;
};

void set_planner(std::unique_ptr<Planner> planner);

// Remembered answers. The key must name everything that the answer depends on.
std::shared_ptr<const EagerPlan> cached_operation_plan(const std::string& key,
                                                       const std::string& name,
                                                       const std::vector<ArgumentSpec>& arguments);
std::shared_ptr<const DmaDescriptor> cached_transfer(const CardView& view,
                                                     c10::ScalarType host_dtype,
                                                     c10::IntArrayRef host_stride,
                                                     bool fill_padding);

struct PlanCacheStats {
  int64_t hits = 0, misses = 0, entries = 0;
};
PlanCacheStats plan_cache_stats();
void clear_plan_cache();

}  // namespace spyre
