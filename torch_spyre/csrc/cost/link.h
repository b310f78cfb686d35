// The link between cards in the clock: what a collective sends over one card's link, and how long
// that takes. Pure functions.
//
// Cards reach each other peer to peer over PCIe gen5 x16, which carries both directions at once.
// Collectives go round a ring of all cards of the group, as NCCL's large ones do; the law counts
// bytes only, a hop takes no time of its own (ours, until someone measures).
#pragma once

#include <cstdint>

namespace spyre::cost {

enum class Collective : uint8_t {
  AllReduce = 0,
  AllGather = 1,
  ReduceScatter = 2,
  AllToAll = 3,
  Broadcast = 4,
  Reduce = 5,
  Gather = 6,
  Scatter = 7,
  Send = 8,
  Receive = 9,
  Barrier = 10,
};
inline constexpr int kCollectives = 11;

struct LinkTraffic {
  int64_t out = 0, in = 0;  // bytes over one card's link
};

// `bytes` is the whole of what is reduced, broadcast or sent, what all cards together gather,
// scatter or reduce to pieces, or what one card gives to all in an all-to-all. `is_root` tells
// whether this card is the one that broadcasts, gathers, scatters, or gets the reduced result.
LinkTraffic link_traffic(Collective what, int64_t bytes, int cards, bool is_root);

// One direction of the link.
int64_t link_nanoseconds(int64_t bytes);

// The busier direction of `link_traffic`.
int64_t collective_nanoseconds(Collective what, int64_t bytes, int cards, bool is_root);

}  // namespace spyre::cost
