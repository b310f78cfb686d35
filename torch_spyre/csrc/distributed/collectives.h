// Each collective on bytes in host memory, made of what the transport has.
#pragma once

#include "distributed/call.h"
#include "distributed/transport.h"

namespace spyre::distributed {

// What the outputs of the call get, one after the other, once the ranks have agreed on it.
//
// From what everybody's inputs hold, if each rank has that already ...
Bytes combine_bytes(const Call& call, const Declarations& said,
                    const std::vector<std::span<const std::byte>>& of_rank, int rank);
// ... or from this rank's own inputs.
Bytes exchange_bytes(const Call& call, Bytes inputs, Transport& transport,
                     const Deadline& deadline);

}  // namespace spyre::distributed
