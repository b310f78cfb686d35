#include "distributed/collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace spyre::distributed {
namespace {

using Lengths = std::vector<int64_t>;

int64_t sum(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

Lengths in_bytes(Lengths elements, int64_t element_size) {
  for (int64_t& length : elements) length *= element_size;
  return elements;
}

// `total` elements in nearly equal shares, one per rank.
Lengths shares(int64_t total, int ranks) {
  Lengths share(ranks, total / ranks);
  for (int64_t rank = 0; rank < total % ranks; ++rank) ++share[rank];
  return share;
}

// One array of as many elements per rank, made one.
Bytes reduced(const Call& call, const std::vector<const std::byte*>& of_rank, int64_t elements) {
  Bytes result(static_cast<size_t>(elements * call.element_size()));
  const Part& part = *call.first();
  reduce(*call.reduction, part.format, meaning_of(part.dtype), of_rank, elements, result.data());
  return result;
}

class Exchange {
 public:
  Exchange(const Call& call, Transport& transport, const Deadline& deadline)
      : call_(call),
        transport_(transport),
        deadline_(deadline),
        element_size_(call.element_size()) {}

  Bytes all_to_all(Bytes inputs, const Lengths& send, const Lengths& receive) {
    return transport_.all_to_all(std::move(inputs), in_bytes(send, element_size_),
                                 in_bytes(receive, element_size_), deadline_);
  }

  // Lengths may differ by rank: the shorter ones are padded on the way.
  Bytes all_gather(Bytes own, const Lengths& elements) {
    const Lengths lengths = in_bytes(elements, element_size_);
    const auto longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
    own.resize(longest);
    Bytes all = transport_.all_gather(std::move(own), deadline_);
    if (sum(lengths) == static_cast<int64_t>(all.size())) return all;
    auto end = all.begin();
    for (size_t rank = 0; rank < lengths.size(); ++rank) {
      end = std::copy_n(all.begin() + static_cast<int64_t>(rank * longest), lengths[rank], end);
    }
    all.erase(end, all.end());
    return all;
  }

  // One array of `n` elements per rank in a row, made one.
  Bytes reduced_rows(const Bytes& all, int64_t n) {
    std::vector<const std::byte*> of_rank;
    for (int rank = 0; rank < transport_.size(); ++rank) {
      of_rank.push_back(all.data() + rank * n * element_size_);
    }
    return reduced(call_, of_rank, n);
  }

  // This rank's share of the sum, and how long everybody's is.
  Bytes own_share(Bytes inputs, const Lengths& share) {
    const int64_t own = share[transport_.rank()];
    return reduced_rows(all_to_all(std::move(inputs), share, Lengths(share.size(), own)), own);
  }

  Bytes all_reduce(Bytes inputs) {
    const Lengths share = shares(call_.send.front(), transport_.size());
    return all_gather(own_share(std::move(inputs), share), share);
  }

  Bytes reduce_to_root(Bytes inputs) {
    const Lengths share = shares(call_.send[call_.root], transport_.size());
    Lengths send(share.size(), 0);
    send[call_.root] = share[transport_.rank()];
    Bytes own = own_share(std::move(inputs), share);
    const bool is_root = call_.root == transport_.rank();
    return all_to_all(std::move(own), send, is_root ? share : Lengths(share.size(), 0));
  }

  Bytes run(Bytes inputs) {
    using cost::Collective;
    switch (call_.what) {
      case Collective::AllReduce:
        return all_reduce(std::move(inputs));
      case Collective::AllGather:
        return all_gather(std::move(inputs), call_.receive);
      case Collective::ReduceScatter: {
        const Bytes all = all_to_all(std::move(inputs), call_.send, call_.receive);
        return reduced_rows(all, call_.receive.front());
      }
      case Collective::Reduce:
        return reduce_to_root(std::move(inputs));
      case Collective::Broadcast:
        inputs.resize(static_cast<size_t>(call_.receive[call_.root] * element_size_));
        return transport_.broadcast(std::move(inputs), call_.root, deadline_);
      default:  // gather, scatter and all_to_all differ in nothing but their lengths
        return all_to_all(std::move(inputs), call_.send, call_.receive);
    }
  }

 private:
  const Call& call_;
  Transport& transport_;
  const Deadline& deadline_;
  const int64_t element_size_;
};

}  // namespace

Bytes combine_bytes(const Call& call, const Declarations& said,
                    const std::vector<std::span<const std::byte>>& of_rank, int rank) {
  const auto own = static_cast<size_t>(rank);
  std::vector<const std::byte*> pieces;  // what each rank has for this one
  Bytes all;
  for (size_t from = 0; from < said.ranks(); ++from) {
    int64_t before = 0;
    for (size_t to = 0; to < own && !gives_all_alike(call.what); ++to)
      before += said.sent(from, to);
    pieces.push_back(of_rank[from].data() + before * call.element_size());
    const auto bytes = static_cast<size_t>(said.sent(from, own) * call.element_size());
    if (!call.reduction) all.insert(all.end(), pieces.back(), pieces.back() + bytes);
  }
  return call.reduction ? reduced(call, pieces, said.sent(own, own)) : all;
}

Bytes exchange_bytes(const Call& call, Bytes inputs, Transport& transport,
                     const Deadline& deadline) {
  return Exchange(call, transport, deadline).run(std::move(inputs));
}

}  // namespace spyre::distributed
