#include "runtime/staging.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

namespace spyre {
namespace {

class Mapping {
 public:
  explicit Mapping(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    TORCH_CHECK(data_ != MAP_FAILED, "the host refuses ", bytes,
                " bytes for the conversion of tensors that are copied to a spyre device");
  }
  ~Mapping() { munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace

at::Tensor staged(const at::Tensor& host, c10::ScalarType dtype) {
  thread_local const Mapping mapping(kStagingBytes);
  TORCH_INTERNAL_ASSERT(host.numel() * static_cast<int64_t>(c10::elementSize(dtype)) <=
                        kStagingBytes);
  const at::Tensor values = at::from_blob(mapping.data(), host.sizes(),
                                          at::TensorOptions().dtype(dtype).device(at::kCPU));
  return values.copy_(host);
}

}  // namespace spyre
