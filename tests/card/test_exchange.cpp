// Exchanges with other cards: their place in the clock, their order, and their end.
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "../../torch_spyre/csrc/card/engine.h"
#include "../../torch_spyre/csrc/card/software_card.h"
#include "../../torch_spyre/csrc/cost/link.h"
#include "check.h"

namespace {

using namespace spyre;
using Finish = std::function<void()>;

Job kernel(QueueId queue, Nanoseconds duration) {
  Job job;
  job.queue = queue;
  job.duration = duration;
  job.run = [] {};
  return job;
}

Exchange at_once(Ticket after) {
  Exchange made;
  made.after = after;
  made.begin = [](const Finish& finish) { finish(); };
  return made;
}

TEST(an_exchange_overlaps_with_later_work_of_its_queue) {
  Scheduler scheduler(0);
  const Ticket before = scheduler.enqueue(kernel(1, 100));
  const Ticket exchange = scheduler.enqueue_exchange(at_once(before), 40, 40);
  CHECK_EQ(exchange.start, 100);
  CHECK_EQ(exchange.end, 140);
  CHECK_EQ(scheduler.enqueue(kernel(1, 30)).end, 130);
  scheduler.block(1, exchange);
  CHECK_EQ(scheduler.enqueue(kernel(1, 10)).end, 150);
  scheduler.synchronize();
}

TEST(the_link_carries_both_directions_at_once_and_each_in_turn) {
  Scheduler scheduler(0);
  CHECK_EQ(scheduler.enqueue_exchange(at_once({}), 50, 0).end, 50);
  CHECK_EQ(scheduler.enqueue_exchange(at_once({}), 0, 20).end, 20);
  CHECK_EQ(scheduler.enqueue_exchange(at_once({}), 10, 0).end, 60);
  CHECK_EQ(scheduler.enqueue_exchange(at_once({}), 5, 30).end, 90);
  CHECK_EQ(scheduler.enqueue_exchange(at_once({}), 0, 0).end, 0);
  scheduler.synchronize();
}

TEST(exchanges_begin_in_order_and_end_as_they_are_told) {
  Scheduler scheduler(0);
  std::mutex mutex;
  std::vector<Finish> begun;
  std::condition_variable changed;
  const auto begin = [&](Finish finish) {
    const std::lock_guard lock(mutex);
    begun.push_back(std::move(finish));
    changed.notify_all();
  };
  const Ticket first = scheduler.enqueue_exchange({{}, 0, 0, begin}, 1, 1);
  const Ticket second = scheduler.enqueue_exchange({{}, 0, 0, begin}, 1, 1);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun.size() == 2; });
  }
  CHECK(!scheduler.is_done(first) && !scheduler.is_done(second));
  begun[1]();
  CHECK(!scheduler.is_done(first) && scheduler.is_done(second));
  begun[0]();
  scheduler.wait(first);
  begun[0]();  // once more changes nothing
  scheduler.synchronize();
}

TEST(an_exchange_of_another_line_does_not_wait_for_one_that_can_not_begin) {
  Scheduler scheduler(0);
  Finish finish;
  std::atomic<bool> has_begun{false};
  Exchange open = at_once({});
  open.begin = [&](Finish given) {
    finish = std::move(given);
    has_begun = true;
  };
  const Ticket first = scheduler.enqueue_exchange(std::move(open), 1, 1);
  const Ticket behind = scheduler.enqueue_exchange(at_once(first), 1, 1);
  const Ticket same_line = scheduler.enqueue_exchange(at_once({}), 1, 1);
  Exchange other = at_once({});
  other.line = 1;
  scheduler.wait(scheduler.enqueue_exchange(std::move(other), 1, 1));
  CHECK(!scheduler.is_done(behind) && !scheduler.is_done(same_line));
  while (!has_begun) std::this_thread::yield();
  finish();
  scheduler.wait(same_line);
  CHECK(scheduler.is_done(behind));
  scheduler.synchronize();
}

TEST(what_waits_for_an_exchange_runs_after_its_end) {
  Scheduler scheduler(0);
  Finish finish;
  std::atomic<bool> has_begun{false};
  std::atomic<bool> has_run{false};
  const Ticket exchange = scheduler.enqueue_exchange({{},
                                                      0,
                                                      0,
                                                      [&](Finish given) {
                                                        finish = std::move(given);
                                                        has_begun = true;
                                                      }},
                                                     1, 1);
  scheduler.block(1, exchange);
  Job job = kernel(1, 1);
  job.run = [&] { has_run = true; };
  const Ticket last = scheduler.enqueue(std::move(job));
  while (!has_begun) std::this_thread::yield();
  CHECK(!has_run && !scheduler.is_done(last));
  finish();
  scheduler.wait(last);
  CHECK(has_run);
}

TEST(a_card_with_a_fault_drops_exchanges) {
  Scheduler scheduler(0);
  Job bad = kernel(0, 1);
  bad.run = [] { throw CardFault(CardFault::Kind::CoreHang, "core 3 hangs"); };
  const Ticket ticket = scheduler.enqueue(std::move(bad));
  CHECK_EQ(MESSAGE_OF(CardFault, scheduler.wait(ticket)), std::string("core 3 hangs"));
  auto alive = std::make_shared<int>();
  scheduler.enqueue_exchange({{}, 0, 0, [alive](const Finish&) {}}, 1, 1);
  CHECK_EQ(alive.use_count(), 1);
}

TEST(a_card_counts_what_it_exchanges_and_copies_for_it_without_a_transfer) {
  CardConfig config;
  config.memory_bytes = int64_t{1} << 20;
  const auto card = open_software_card(config);
  const Address block = card->allocate(kStickBytes, 0);
  DmaDescriptor how;
  how.device_format = DataFormat::IEEE_INT32;
  how.host_format = HostFormat::Int32;
  how.nests = {{{32}, {1}, {1}, 0, 0, false}};
  how.device_bytes = how.host_bytes = kStickBytes;
  std::vector<int32_t> from(32, 7);
  std::vector<int32_t> to(32, 0);
  card->write_now(block, how, from.data());
  card->read_now(block, how, to.data());
  CHECK(from == to);
  const Ticket ticket = card->exchange({{}, 1000, 500, [](const Finish& finish) { finish(); }});
  card->wait(ticket);
  CHECK_EQ(ticket.end, cost::link_nanoseconds(1000));
  const Counters counters = card->counters();
  CHECK_EQ(counters.exchanges, 1);
  CHECK_EQ(counters.bytes_out, 1000);
  CHECK_EQ(counters.bytes_in, 500);
  CHECK_EQ(counters.link_busy, 20);
  CHECK_EQ(counters.transfers, 0);
  card->free(block);
}

}  // namespace
