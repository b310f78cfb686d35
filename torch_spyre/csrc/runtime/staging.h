// A piece of host memory per thread in which values are converted on their way to the card.
//
// It is no part of the heap. Blocks of some megabytes that are freed between small ones break the
// heap into pieces that no later block fits and that never go back to the host: a checkpoint that
// was converted tensor by tensor would stay there by half.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace spyre {

inline constexpr int64_t kStagingBytes = int64_t{4} << 20;
// Up to here the heap does as well.
inline constexpr int64_t kSmallBytes = int64_t{64} << 10;

// The values of a CPU tensor in another dtype, dense, in this thread's staging memory. They take
// kStagingBytes at most and are good until the thread's next call.
at::Tensor staged(const at::Tensor& host, c10::ScalarType dtype);

}  // namespace spyre
