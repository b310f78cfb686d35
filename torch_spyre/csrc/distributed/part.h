// A tensor as it travels between cards: its elements in host order, in the bits that the card
// holds.
//
// Nothing is converted on the way, so that all cards hold the very same values afterwards: a
// bfloat16 tensor has more fraction bits on a card than bfloat16 on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "card/driver.h"

namespace spyre::distributed {

struct Part {
  c10::Storage storage;  // alive as long as this is
  c10::DeviceIndex device = -1;
  Address address = 0;
  std::shared_ptr<const DmaDescriptor> how;  // null: no elements
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  DataFormat format = DataFormat::INVALID;
  int64_t numel = 0;
  int64_t bytes = 0;  // as it travels
};

enum class Role { Input, Output };

// Throws c10::ValueError for a tensor that is sparse or not on a card, and for an output whose
// elements overlap or that is seen under another dtype than its storage's. Such an input is copied.
Part make_part(const at::Tensor& tensor, Role role);

// Keeps a storage in its block while an exchange that knows the address is under way.
class Pin {
 public:
  explicit Pin(c10::Storage storage);
  Pin(Pin&& other) noexcept = default;
  Pin& operator=(Pin&& other) = delete;
  ~Pin();

 private:
  c10::Storage storage_;
};

// On any thread, while the exchange is under way.
void read_part(const Part& part, std::byte* to);
void write_part(const Part& part, const std::byte* from);

}  // namespace spyre::distributed
