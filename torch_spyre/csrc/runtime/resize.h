// Growing and shrinking storages.
#pragma once

#include <ATen/core/Tensor.h>

namespace spyre {

// Changes the host image to `bytes` bytes; what fits is kept.
void resize_storage(const c10::Storage& storage, int64_t bytes);

// `tensor.resize_(size)`: contiguous, or in the memory format asked for.
void resize_tensor(const at::Tensor& tensor, c10::IntArrayRef size,
                   std::optional<c10::MemoryFormat> format);

// For `out=`: as above, with PyTorch's warning when a non-empty tensor changes its size. The old
// contents are not kept.
void resize_output(const at::Tensor& tensor, c10::IntArrayRef size);

}  // namespace spyre
