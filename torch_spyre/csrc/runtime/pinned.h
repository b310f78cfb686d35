// Pinned host memory: what asynchronous copies may read and write.
//
// The card's DMA engines can reach all of the host's memory; pinning marks the blocks whose owner
// promised not to touch them while a copy is under way, and that is what `non_blocking` asks for.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace spyre {

at::HostAllocator& pinned_allocator();
bool is_pinned(const void* data);

}  // namespace spyre
