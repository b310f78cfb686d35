// The card's memory: reuse across queues, giving back to the host, running out.
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/host_memory.h"
#include "../../torch_spyre/csrc/card/memory.h"
#include "check.h"

namespace {

using namespace spyre;

constexpr int64_t kMiB = 1024 * 1024;

// Queues whose work is done when the test says so.
class Queues final : public WorkTracker {
 public:
  Ticket enqueue(QueueId queue) {
    tails_[queue] = {++last_, 0, queue};
    pending_.insert(last_);
    return tails_[queue];
  }
  void finish(Ticket ticket) { pending_.erase(ticket.sequence); }

  Ticket record(QueueId queue) override { return tails_[queue]; }
  bool is_done(Ticket ticket) const override { return !pending_.contains(ticket.sequence); }
  bool is_drained() const override { return pending_.empty(); }
  void wait_quietly(Ticket ticket) override {
    ++waits;
    finish(ticket);
  }

  int waits = 0;

 private:
  std::array<Ticket, kQueues> tails_{};
  std::set<uint64_t> pending_;
  uint64_t last_ = 0;
};

int64_t plenty() { return int64_t{1} << 40; }

struct Card {
  explicit Card(int64_t bytes, std::function<int64_t()> host = plenty)
      : memory(0, bytes, queues, std::move(host)) {}
  Queues queues;
  Memory memory;
};

template <typename Function>
std::string out_of_memory(Function function, bool host_is_full = false) {
  try {
    function();
  } catch (const OutOfMemory& error) {
    CHECK_EQ(error.host_is_full, host_is_full);
    return error.what();
  }
  return "no error";
}

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "  got: %s\n", text.c_str());
  return false;
}

}  // namespace

TEST(blocks_are_whole_sticks_and_never_at_address_0) {
  Card card(kMiB);
  const Address a = card.memory.allocate(0, 0);
  const Address b = card.memory.allocate(1, 0);
  const Address c = card.memory.allocate(129, 0);
  CHECK(a != 0);
  CHECK_EQ(a % kStickBytes, 0u);
  CHECK_EQ(b - a, 128u);
  CHECK_EQ(c - b, 128u);
  CHECK_EQ(card.memory.stats().allocated_bytes.current, 512);
  CHECK_EQ(card.memory.stats().requested_bytes.current, 130);
  CHECK_EQ(card.memory.stats().allocations.current, 3);
}

TEST(neighbours_coalesce_when_freed) {
  Card card(4 * kMiB);
  std::vector<Address> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(card.memory.allocate(kMiB, 0));
  for (const int i : {0, 2, 1, 3}) card.memory.free(blocks[i]);
  CHECK_EQ(card.memory.allocate(4 * kMiB, 0), blocks[0]);
}

TEST(the_best_fitting_hole_is_taken) {
  Card card(4 * kMiB);
  const Address large = card.memory.allocate(2048, 0);
  card.memory.allocate(128, 0);
  const Address small = card.memory.allocate(1024, 0);
  card.memory.allocate(128, 0);
  card.memory.free(large);
  card.memory.free(small);
  CHECK_EQ(card.memory.allocate(1000, 0), small);
  CHECK_EQ(card.memory.allocate(1000, 0), large);
}

TEST(a_freed_block_is_reused_on_its_queue_at_once_and_elsewhere_later) {
  Card card(4 * kMiB);
  const Address block = card.memory.allocate(kMiB, 1);
  const Ticket work = card.queues.enqueue(1);
  card.memory.free(block);
  CHECK_EQ(card.memory.stats().allocated_bytes.current, 0);
  CHECK_EQ(card.memory.stats().active_bytes.current, kMiB);
  const Address other = card.memory.allocate(kMiB, 2);
  CHECK(other != block);
  const Address again = card.memory.allocate(kMiB, 1);
  CHECK_EQ(again, block);
  card.memory.free(again);
  card.queues.finish(work);
  CHECK_EQ(card.memory.allocate(kMiB, 2), block);
}

TEST(a_block_used_on_another_queue_waits_for_it_too) {
  Card card(4 * kMiB);
  const Address block = card.memory.allocate(kMiB, 1);
  card.memory.record_use(block, 2);
  const Ticket work = card.queues.enqueue(2);
  card.memory.free(block);
  CHECK(card.memory.allocate(kMiB, 1) != block);
  card.queues.finish(work);
  CHECK_EQ(card.memory.allocate(kMiB, 1), block);
}

TEST(a_part_of_a_waiting_block_can_be_reused) {
  Card card(kMiB);
  const Address block = card.memory.allocate(kMiB, 1);
  const Ticket work = card.queues.enqueue(1);
  card.memory.free(block);
  CHECK_EQ(card.memory.allocate(1024, 1), block);
  CHECK_EQ(card.memory.stats().active_bytes.current, kMiB);
  CHECK_EQ(card.memory.stats().active_blocks.current, 2);
  card.queues.finish(work);
  CHECK_EQ(card.memory.allocate(1024, 3), block + 1024);
  CHECK_EQ(card.memory.stats().active_bytes.current, 2048);
}

TEST(an_allocation_waits_for_work_rather_than_fail) {
  Card card(kMiB);
  const Address block = card.memory.allocate(kMiB, 1);
  card.queues.enqueue(1);
  card.memory.free(block);
  CHECK_EQ(card.memory.allocate(kMiB, 2), block);
  CHECK_EQ(card.queues.waits, 1);
  CHECK_EQ(card.memory.stats().alloc_retries, 1);
}

TEST(exhaustion_names_the_figures_and_a_smaller_request_succeeds) {
  Card card(4 * kMiB);
  card.memory.allocate(3 * kMiB, 0);
  const std::string text = out_of_memory([&] { card.memory.allocate(2 * kMiB, 0); });
  CHECK(says(text, "allocate 2.00 MiB, 1.00 MiB of 4.00 MiB are free"));
  CHECK(says(text, "largest free block has 1.00 MiB"));
  CHECK(says(out_of_memory([&] { card.memory.allocate(int64_t{1} << 62, 0); }), "allocate"));
  CHECK_EQ(card.memory.stats().ooms, 2);
  CHECK(card.memory.allocate(kMiB, 0) != 0);
  CHECK_EQ(card.memory.free_bytes(), 0);
}

TEST(a_full_host_is_told_from_a_full_card) {
  const int64_t reserve = host_memory_reserve();
  Card card(1024 * kMiB, [&] { return reserve + 16 * kMiB; });
  const std::string text = out_of_memory([&] { card.memory.allocate(64 * kMiB, 0); }, true);
  CHECK(says(text, "the host is out of memory, not Spyre card 0"));
  CHECK(says(text, "1.00 GiB of 1.00 GiB are free"));
  CHECK_EQ(card.memory.stats().reserved_bytes.current, 0);
  // What was promised and not touched yet counts as gone.
  card.memory.allocate(10 * kMiB, 0);
  out_of_memory([&] { card.memory.allocate(10 * kMiB, 0); }, true);
  card.memory.allocate(4 * kMiB, 0);
}

TEST(unused_memory_beyond_one_gib_goes_back_at_once) {
  Card card(4096 * kMiB);
  std::vector<Address> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(card.memory.allocate(256 * kMiB, 0));
  std::memset(card.memory.data() + blocks[5], 1, 4096);
  CHECK_EQ(card.memory.stats().reserved_bytes.current, 6 * 256 * kMiB);
  for (const Address block : blocks) card.memory.free(block);
  CHECK_EQ(card.memory.stats().reserved_bytes.current, kKeptBytes);
  card.memory.empty_cache();
  CHECK_EQ(card.memory.stats().reserved_bytes.current, 0);
  CHECK_EQ(card.memory.stats().reserved_bytes.peak, 6 * 256 * kMiB);
  // Given back and taken again, it is clean.
  CHECK_EQ(card.memory.allocate(6 * 256 * kMiB, 0), blocks[0]);
  CHECK(card.memory.data()[blocks[5]] == std::byte{0});
}

TEST(memory_is_not_given_back_under_running_work) {
  Card card(64 * kMiB);
  const Address block = card.memory.allocate(16 * kMiB, 0);
  const Ticket work = card.queues.enqueue(5);  // on another queue, not recorded: a user's mistake
  card.memory.free(block);
  card.memory.empty_cache();
  CHECK_EQ(card.memory.stats().reserved_bytes.current, 16 * kMiB);
  card.queues.finish(work);
  card.memory.empty_cache();
  CHECK_EQ(card.memory.stats().reserved_bytes.current, 0);
}

TEST(granules_shared_with_a_live_block_stay) {
  Card card(64 * kMiB);
  const Address large = card.memory.allocate(5 * kMiB, 0);
  const Address small = card.memory.allocate(128, 0);
  std::memset(card.memory.data() + small, 7, 128);
  card.memory.free(large);
  card.memory.empty_cache();
  CHECK_EQ(card.memory.stats().reserved_bytes.current, 2 * kMiB);
  CHECK(card.memory.data()[small] == std::byte{7});
  card.memory.free(small);
  card.memory.empty_cache();
  CHECK_EQ(card.memory.stats().reserved_bytes.current, 0);
}

TEST(only_live_blocks_can_be_addressed) {
  Card card(kMiB);
  const Address block = card.memory.allocate(256, 0);
  CHECK(card.memory.is_allocated(block, 256));
  CHECK(card.memory.is_allocated(block + 128, 128));
  CHECK(!card.memory.is_allocated(block + 128, 129));
  CHECK(!card.memory.is_allocated(block, INT64_MAX));
  CHECK(!card.memory.is_allocated(0, 1));
  CHECK(!card.memory.is_allocated(~Address{0}, 1));
  card.memory.free(block);
  CHECK(!card.memory.is_allocated(block, 1));
  bool refused = false;
  try {
    card.memory.free(block);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(statistics_can_be_reset) {
  Card card(kMiB);
  card.memory.free(card.memory.allocate(1024, 0));
  CHECK_EQ(card.memory.stats().allocated_bytes.peak, 1024);
  CHECK_EQ(card.memory.stats().allocated_bytes.freed, 1024);
  card.memory.reset_peak_stats();
  card.memory.reset_accumulated_stats();
  CHECK_EQ(card.memory.stats().allocated_bytes.peak, 0);
  CHECK_EQ(card.memory.stats().allocated_bytes.allocated, 0);
}

TEST(the_host_tells_how_much_it_has) {
  CHECK(available_host_memory() > 0);
  CHECK(host_memory_reserve() > 0);
  CHECK_EQ(format_bytes(100), std::string("100 bytes"));
  CHECK_EQ(format_bytes(3 * kMiB / 2), std::string("1.50 MiB"));
}
