// One collective as a rank asks for it, and what the ranks have to agree on.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cost/link.h"
#include "distributed/part.h"
#include "distributed/reduction.h"

namespace spyre::distributed {

struct Call {
  cost::Collective what = cost::Collective::Barrier;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::optional<Reduction> reduction;
  int root = -1;
  std::vector<Part> inputs, outputs;  // one after the other; all of one dtype
  // Elements for each rank, and from each: what rank i sends to j is what j expects of i.
  std::vector<int64_t> send, receive;
  uint64_t sequence = 0;
  std::chrono::milliseconds timeout{};
  std::vector<at::Tensor> results;
  // Why this rank could not read its inputs; the others are told that it is so.
  std::string failure;

  const Part* first() const;  // any of the parts; null for a barrier
  int64_t element_size() const;
};

const char* name_of(cost::Collective what);
// Does a rank give the same to all others, and not a piece to each?
bool gives_all_alike(cost::Collective what);

Meaning meaning_of(c10::ScalarType dtype);

// Throws c10::ValueError for parts of different dtypes or cards.
void check_parts(const Call& call);

// What the ranks tell each other before anything else moves. The same number of words for every
// call of a group, so that even ranks that asked for different things understand each other.
std::vector<int64_t> declaration(const Call& call);

// The declarations of all ranks, in their order.
class Declarations {
 public:
  explicit Declarations(std::vector<std::vector<int64_t>> said) : said_(std::move(said)) {}

  // "" or how they contradict each other; `names` are the ranks' global ones.
  std::string disagreement(const std::vector<int64_t>& names) const;
  int64_t sent(size_t from, size_t to) const;      // elements
  int64_t expected(size_t from, size_t to) const;  // by `to`
  size_t ranks() const { return said_.size(); }
  int64_t largest_input() const;  // of any rank, in elements

 private:
  std::vector<std::vector<int64_t>> said_;
};

}  // namespace spyre::distributed
