// Layouts in checkpoints: a tensor whose layout is not its default takes it along.
//
// PyTorch lets a backend add named truths to a pickled tensor; the layout is spelled out in the
// name: "spyre_layout:<device_size>:<stride_map>:<format>:<arrangement>". A checkpoint loaded to
// another device ignores it.
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <charconv>
#include <sstream>

#include "runtime/copy.h"
#include "runtime/register.h"
#include "runtime/view.h"

namespace spyre {
namespace {

using Metadata = std::unordered_map<std::string, bool>;
constexpr std::string_view kPrefix = "spyre_layout:";

std::string join(const std::vector<int64_t>& values) {
  std::ostringstream text;
  for (size_t i = 0; i < values.size(); ++i) {
    text << (i == 0 ? "" : ",") << values[i];
  }
  return text.str();
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

int64_t to_integer(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK(error == std::errc() && end == text.data() + text.size(),
              "a saved spyre layout holds '", text, "' where a number belongs");
  return value;
}

std::vector<int64_t> to_integers(const std::string& text) {
  std::vector<int64_t> values;
  for (const std::string& part : split(text, ',')) {
    values.push_back(to_integer(part));
  }
  return values;
}

void save_layout(const at::Tensor& tensor, Metadata& metadata) {
  if (!is_card_storage(tensor.storage()) || is_reinterpreted(tensor) || !covers_storage(tensor)) {
    return;
  }
  const SpyreTensorLayout& layout = *card_storage(tensor.storage()).layout;
  if (layout == *default_layout(tensor.sizes(), tensor.strides(), tensor.scalar_type())) {
    return;
  }
  metadata[std::string(kPrefix) + join(layout.device_size()) + ":" + join(layout.stride_map()) +
           ":" + std::to_string(static_cast<int>(layout.device_dtype())) + ":" +
           std::to_string(static_cast<int>(layout.element_arrangement()))] = true;
}

void load_layout(const at::Tensor& tensor, Metadata& metadata) {
  for (const auto& [name, value] : metadata) {
    if (!name.starts_with(kPrefix)) {
      continue;
    }
    const auto parts = split(name.substr(kPrefix.size()), ':');
    TORCH_CHECK(parts.size() == 4, "a saved spyre layout is malformed: ", name);
    set_layout(tensor, SpyreTensorLayout(to_integers(parts[0]), to_integers(parts[1]),
                                         static_cast<DataFormat>(to_integer(parts[2])),
                                         static_cast<ElementArrangement>(to_integer(parts[3]))));
  }
}

}  // namespace

void register_serialization() {
  torch::jit::TensorBackendMetaRegistry(c10::kPrivateUse1, &save_layout, &load_layout);
}

}  // namespace spyre
