#include "link.h"

#include <algorithm>

#include "cost.h"

namespace spyre::cost {
namespace {

// bytes x (n - 1)/n, rounded up: all but a card's own share.
int64_t others_share(int64_t bytes, int cards) {
  const int64_t own = bytes / cards;
  return bytes - own;
}

}  // namespace

LinkTraffic link_traffic(Collective what, int64_t bytes, int cards, bool is_root) {
  if (cards <= 1) return {};
  const int64_t share = others_share(bytes, cards);
  const int64_t piece = bytes - share;  // what one card has of the whole
  switch (what) {
    case Collective::AllReduce:  // reduce-scatter, then all-gather
      return {2 * share, 2 * share};
    case Collective::AllGather:
    case Collective::ReduceScatter:
    case Collective::AllToAll:
      return {share, share};
    // Pipelined along the ring: every card passes on what it gets, the last one nothing. Cards in
    // between are as busy in either direction, so the root's neighbour need not be known.
    case Collective::Broadcast:
      return is_root ? LinkTraffic{bytes, 0} : LinkTraffic{0, bytes};
    case Collective::Reduce:
      return is_root ? LinkTraffic{0, bytes} : LinkTraffic{bytes, 0};
    case Collective::Gather:
      return is_root ? LinkTraffic{0, share} : LinkTraffic{piece, 0};
    case Collective::Scatter:
      return is_root ? LinkTraffic{share, 0} : LinkTraffic{0, piece};
    case Collective::Send:
      return {bytes, 0};
    case Collective::Receive:
      return {0, bytes};
    case Collective::Barrier:
      return {};
  }
  return {};
}

int64_t link_nanoseconds(int64_t bytes) { return dma_nanoseconds(bytes); }

int64_t collective_nanoseconds(Collective what, int64_t bytes, int cards, bool is_root) {
  const LinkTraffic traffic = link_traffic(what, bytes, cards, is_root);
  return link_nanoseconds(std::max(traffic.out, traffic.in));
}

}  // namespace spyre::cost
