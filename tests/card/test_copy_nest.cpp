// Copies by loop nest against the plain loop that a nest stands for.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "../../torch_spyre/csrc/card/kernels.h"
#include "check.h"

using namespace spyre;
using namespace spyre::kernels;

namespace {

using Bytes = std::vector<std::byte>;

struct Problem {
  CopyNest nest;
  Codec codec;
  int64_t from_start = 0;  // where negative strides begin
  Bytes from;
  Bytes to;
};

int64_t copy_plainly(const CopyNest& nest, const Codec& codec, const std::byte* from, std::byte* to,
                     int level = 0) {
  if (level == nest.rank) {
    if (codec.convert != nullptr) return codec.convert(from, to, 1);
    std::memcpy(to, from, static_cast<size_t>(codec.to_bytes));
    return 0;
  }
  const auto at = static_cast<size_t>(level);
  int64_t misfits = 0;
  for (int64_t i = 0; i < nest.extent[at]; ++i) {
    misfits += copy_plainly(nest, codec, from + i * nest.from_stride[at],
                            to + i * nest.to_stride[at], level + 1);
  }
  return misfits;
}

// Random extents; each side is a permuted dense array, at times with gaps, and the source at
// times reversed or repeated.
Problem random_problem(std::mt19937& random, const Codec& codec, int64_t largest) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Problem problem;
  problem.codec = codec;
  CopyNest& nest = problem.nest;
  nest.rank = static_cast<int>(pick(0, 5));
  int64_t elements = 1;
  for (int i = 0; i < nest.rank; ++i) {
    const int64_t room = std::max<int64_t>(1, largest / elements);
    nest.extent[static_cast<size_t>(i)] =
        pick(1, std::min<int64_t>(room, pick(0, 2) == 0 ? 300 : 9));
    elements *= nest.extent[static_cast<size_t>(i)];
  }
  const auto lay_out = [&](std::array<int64_t, kMaxRank>& strides, int bytes, bool is_source) {
    std::vector<size_t> order(static_cast<size_t>(nest.rank));
    std::iota(order.begin(), order.end(), 0u);
    if (pick(0, 3) != 0) std::shuffle(order.begin(), order.end(), random);
    int64_t start = 0, span = bytes, step = bytes;
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      const int64_t extent = nest.extent[*it];
      const int64_t kind = pick(0, 9);
      strides[*it] = is_source && kind == 0 ? 0 : step;
      if (is_source && kind == 1) {
        strides[*it] = -step;
        start += (extent - 1) * step;
      }
      span += (extent - 1) * std::abs(strides[*it]);
      step *= extent;
      if (kind == 2) step += bytes * pick(1, 5);
    }
    if (is_source) problem.from_start = start;
    return span;
  };
  problem.from.resize(static_cast<size_t>(lay_out(nest.from_stride, codec.from_bytes, true)));
  problem.to.resize(static_cast<size_t>(lay_out(nest.to_stride, codec.to_bytes, false)));
  for (std::byte& byte : problem.from) byte = static_cast<std::byte>(random());
  return problem;
}

std::vector<Codec> codecs() {
  return {{1, 1, nullptr},
          {2, 2, nullptr},
          {4, 4, nullptr},
          {8, 8, nullptr},
          codec_to_card(HostFormat::Float16, DataFormat::SEN169_FP16),
          codec_to_host(HostFormat::Float32, DataFormat::SEN169_FP16),
          codec_to_card(HostFormat::Int64, DataFormat::IEEE_INT32),
          codec_to_card(HostFormat::UInt8, DataFormat::SENUINT32),
          codec_to_host(HostFormat::Bool, DataFormat::SEN169_FP16)};
}

}  // namespace

TEST(a_copy_does_what_the_plain_loops_do) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    for (const Codec& codec : codecs()) {
      Problem problem = random_problem(random, codec, round % 10 == 0 ? 100000 : 3000);
      Bytes wanted = problem.to;
      const std::byte* from = problem.from.data() + problem.from_start;
      const int64_t misfits = copy_plainly(problem.nest, codec, from, wanted.data());
      CHECK_EQ(run_copy(problem.nest, codec, from, problem.to.data()), misfits);
      CHECK(problem.to == wanted);
    }
  }
}

TEST(slices_together_are_the_whole_copy) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const Codec codec = codecs()[static_cast<size_t>(round) % codecs().size()];
    Problem problem = random_problem(random, codec, 20000);
    Bytes wanted = problem.to;
    const std::byte* from = problem.from.data() + problem.from_start;
    const int64_t misfits = copy_plainly(problem.nest, codec, from, wanted.data());
    const CopyNest nest = simplify(problem.nest);
    const int parts = 1 + round % 7;
    int64_t sum = 0;
    for (int i = 0; i < parts; ++i) {
      const NestSlice piece = slice(nest, parts, i);
      sum += run_copy(piece.nest, codec, from + piece.from_offset,
                      problem.to.data() + piece.to_offset);
    }
    CHECK_EQ(sum, misfits);
    CHECK(problem.to == wanted);
  }
}

TEST(simplifying_merges_a_dense_nest_into_one_loop) {
  const CopyNest dense{4, {2, 1, 3, 5}, {30, 99, 10, 2}, {15, 7, 5, 1}};
  const CopyNest simple = simplify(dense);
  CHECK_EQ(simple.rank, 1);
  CHECK_EQ(simple.extent[0], 30);
  CHECK_EQ(simple.from_stride[0], 2);
  CHECK_EQ(simple.to_stride[0], 1);
  CHECK_EQ(simplify(CopyNest{}).rank, 0);
}

TEST(an_empty_nest_copies_nothing) {
  const CopyNest empty{2, {3, 0}, {4, 4}, {4, 4}};
  CHECK_EQ(run_copy(empty, {4, 4, nullptr}, nullptr, nullptr), 0);
  CHECK_EQ(run_copy(slice(simplify(empty), 3, 1).nest, {4, 4, nullptr}, nullptr, nullptr), 0);
}

TEST(tiles_move_in_every_direction) {
  std::mt19937 random(5);
  for (const int bytes : {1, 2, 4, 8}) {
    for (const int64_t rows : {1, 7, 16, 33, 64}) {
      for (const int64_t cols : {1, 5, 8, 17, 64}) {
        Bytes from(static_cast<size_t>(rows * cols * bytes));
        for (std::byte& byte : from) byte = static_cast<std::byte>(random());
        const int64_t by_row = cols * bytes, by_col = rows * bytes;
        Bytes turned(from.size()), back(from.size());
        table().move_tile(bytes, from.data(), by_row, bytes, turned.data(), bytes, by_col, rows,
                          cols);
        table().move_tile(bytes, turned.data(), bytes, by_col, back.data(), by_row, bytes, rows,
                          cols);
        CHECK(back == from);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < cols; ++j) {
            CHECK_EQ(std::memcmp(&from[static_cast<size_t>(i * by_row + j * bytes)],
                                 &turned[static_cast<size_t>(i * bytes + j * by_col)],
                                 static_cast<size_t>(bytes)),
                     0);
          }
        }
      }
    }
  }
}
