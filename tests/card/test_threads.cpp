// How the host's threads divide work: every item once, and the same thread for the same items.
#include "../../torch_spyre/csrc/card/threads.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using namespace spyre;

TEST(a_part_takes_its_own_items_in_order_then_those_of_others) {
  Shares shares(7, 3);  // 0 1 | 2 3 | 4 5 6
  std::vector<int> taken;
  for (int i = 0; i < 7; ++i) {
    CHECK(shares.has_any());
    taken.push_back(shares.take(1));
  }
  CHECK((taken == std::vector<int>{2, 3, 4, 5, 6, 0, 1}));
  CHECK(!shares.has_any());
  for (int part = 0; part < 3; ++part) CHECK(shares.take(part) >= 7);
}

TEST(fewer_items_than_parts_are_all_taken) {
  for (int count = 0; count < 5; ++count) {
    Shares shares(count, 4);
    std::vector<int> times(4, 0);
    for (int item; (item = shares.take(3)) < count;) ++times[item];
    for (int item = 0; item < 4; ++item) CHECK_EQ(times[item], item < count ? 1 : 0);
  }
}

TEST(parts_that_take_at_the_same_time_take_every_item_once) {
  constexpr int kItems = 20'000, kParts = 4;
  Shares shares(kItems, kParts);
  std::vector<std::atomic<int>> times(kItems);
  std::vector<std::thread> threads;
  for (int part = 0; part < kParts; ++part) {
    threads.emplace_back([&, part] {
      for (int item; (item = shares.take(part)) < kItems;) ++times[item];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : times) CHECK_EQ(count.load(), 1);
}

TEST(batches_of_several_callers_are_done_and_the_first_failure_is_thrown) {
  ThreadPool pool(3);
  std::atomic<int> done{0}, failures{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int turn = 0; turn < 200; ++turn) {
        try {
          pool.run(17, [&](int item) {
            ++done;
            if (item >= 5) throw std::runtime_error(std::to_string(item));
          });
        } catch (const std::runtime_error& error) {
          if (error.what() == std::string("5")) ++failures;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(done.load(), 3 * 200 * 17);
  CHECK_EQ(failures.load(), 3 * 200);
}

}  // namespace
