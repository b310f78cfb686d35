#include "distributed/call.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "card/formats.h"

namespace spyre::distributed {
namespace {

constexpr std::array<const char*, cost::kCollectives> kNames = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
    "gather",     "scatter",    "send",           "recv",       "barrier"};
constexpr std::array<const char*, 8> kReductions = {"SUM", "AVG",  "PRODUCT", "MIN",
                                                    "MAX", "BAND", "BOR",     "BXOR"};

// The fields of a declaration before its 2 x ranks lengths.
enum Field : size_t {
  kWhat,
  kSequence,
  kReduction,
  kRoot,
  kDtype,
  kCompared,
  kHasFailed = kCompared,
  kFields
};
constexpr int64_t kNone = -1;

std::string describe(const std::vector<int64_t>& said, const std::vector<int64_t>& names) {
  std::ostringstream text;
  text << name_of(static_cast<cost::Collective>(said[kWhat])) << " #" << said[kSequence];
  if (said[kReduction] != kNone) text << " " << kReductions[said[kReduction]];
  if (said[kDtype] != kNone) {
    text << " of " << c10::toString(static_cast<c10::ScalarType>(said[kDtype]));
  }
  if (said[kRoot] != kNone) text << ", root " << names[said[kRoot]];
  return text.str();
}

}  // namespace

const char* name_of(cost::Collective what) { return kNames[static_cast<size_t>(what)]; }

bool gives_all_alike(cost::Collective what) {
  using cost::Collective;
  return what == Collective::AllReduce || what == Collective::AllGather ||
         what == Collective::Broadcast || what == Collective::Reduce;
}

Meaning meaning_of(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Bool) return Meaning::Truth;
  return dtype == c10::ScalarType::Byte ? Meaning::Byte : Meaning::Number;
}

const Part* Call::first() const {
  if (!inputs.empty()) return &inputs.front();
  return outputs.empty() ? nullptr : &outputs.front();
}

int64_t Call::element_size() const {
  const Part* part = first();
  return part == nullptr ? 0 : element_bytes(part->format);
}

void check_parts(const Call& call) {
  const Part* first = call.first();
  for (const std::vector<Part>* parts : {&call.inputs, &call.outputs}) {
    for (const Part& part : *parts) {
      TORCH_CHECK_VALUE(part.dtype == first->dtype, name_of(call.what), ": all tensors of a call ",
                        "must have one dtype, got ", first->dtype, " and ", part.dtype);
      TORCH_CHECK_VALUE(
          part.device == first->device, name_of(call.what),
          ": tensors of two cards in one call, spyre:", static_cast<int>(first->device),
          " and spyre:", static_cast<int>(part.device));
    }
  }
}

std::vector<int64_t> declaration(const Call& call) {
  std::vector<int64_t> said(kFields);
  const Part* part = call.first();
  said[kWhat] = static_cast<int64_t>(call.what);
  said[kSequence] = static_cast<int64_t>(call.sequence);
  said[kReduction] = call.reduction ? static_cast<int64_t>(*call.reduction) : kNone;
  said[kRoot] = call.root;
  said[kDtype] = part == nullptr ? kNone : static_cast<int64_t>(part->dtype);
  said[kHasFailed] = call.failure.empty() ? 0 : 1;
  said.insert(said.end(), call.send.begin(), call.send.end());
  said.insert(said.end(), call.receive.begin(), call.receive.end());
  return said;
}

int64_t Declarations::sent(size_t from, size_t to) const { return said_[from][kFields + to]; }

int64_t Declarations::expected(size_t from, size_t to) const {
  return said_[to][kFields + ranks() + from];
}

int64_t Declarations::largest_input() const {
  const bool is_alike = gives_all_alike(static_cast<cost::Collective>(said_[0][kWhat]));
  int64_t most = 0;
  for (size_t from = 0; from < ranks(); ++from) {
    int64_t own = 0;
    for (size_t to = 0; to < ranks(); ++to) {
      own = is_alike ? std::max(own, sent(from, to)) : own + sent(from, to);
    }
    most = std::max(most, own);
  }
  return most;
}

std::string Declarations::disagreement(const std::vector<int64_t>& names) const {
  std::ostringstream text;
  for (size_t rank = 1; rank < ranks(); ++rank) {
    if (!std::equal(said_[0].begin(), said_[0].begin() + kCompared, said_[rank].begin())) {
      text << "rank " << names[0] << " called " << describe(said_[0], names) << " and rank "
           << names[rank] << " called " << describe(said_[rank], names);
      return text.str();
    }
  }
  for (size_t rank = 0; rank < ranks(); ++rank) {
    if (said_[rank][kHasFailed] == 0) continue;
    text << "rank " << names[rank] << " could not read its inputs; it says why";
    return text.str();
  }
  for (size_t from = 0; from < ranks(); ++from) {
    for (size_t to = 0; to < ranks(); ++to) {
      if (sent(from, to) == expected(from, to)) continue;
      text << "rank " << names[from] << " gives " << sent(from, to) << " elements to rank "
           << names[to] << ", which expects " << expected(from, to);
      return text.str();
    }
  }
  return "";
}

}  // namespace spyre::distributed
