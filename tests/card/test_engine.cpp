// Queues, engines, events and faults: order, overlap, times that repeat, and no deadlock.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <latch>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../torch_spyre/csrc/card/engine.h"
#include "../../torch_spyre/csrc/card/software_card.h"
#include "../../torch_spyre/csrc/cost/cost.h"
#include "check.h"
#include "programs.h"

namespace {

using namespace spyre;
using spyre::testing::ProgramBuilder;

// Holds whoever waits until opened.
class Gate {
 public:
  void open() {
    {
      std::lock_guard lock(mutex_);
      is_open_ = true;
    }
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

Job job(
    EngineId engine, QueueId queue, Nanoseconds duration, std::function<void()> run = [] {},
    bool is_small = false) {
  Job made;
  made.engine = engine;
  made.queue = queue;
  made.duration = duration;
  made.run = std::move(run);
  made.is_small = is_small;
  return made;
}

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "  got: %s\n", text.c_str());
  return false;
}

// `count` 32-bit integers, one after the other on both sides.
std::shared_ptr<DmaDescriptor> integers(int64_t count, HostFormat host = HostFormat::Int32) {
  auto how = std::make_shared<DmaDescriptor>();
  how->device_format = DataFormat::IEEE_INT32;
  how->host_format = host;
  how->nests.push_back({{count}, {1}, {1}, 0, 0, false});
  how->device_bytes = count * 4;
  how->host_bytes = count * host_element_bytes(host);
  return how;
}

// y = -x over `sticks` sticks of integers.
std::vector<std::byte> negation(int64_t sticks) {
  ProgramBuilder builder;
  const uint32_t x = builder.address(sticks * 128, false, DataFormat::IEEE_INT32);
  const uint32_t y = builder.address(sticks * 128, true, DataFormat::IEEE_INT32);
  builder.run(builder.step(Opcode::neg_int, 1, {sticks},
                           {builder.device(x, DataFormat::IEEE_INT32, {128})},
                           builder.device(y, DataFormat::IEEE_INT32, {128})));
  return builder.bytes();
}

std::unique_ptr<Driver> open_card(int threads = 2) {
  return open_software_card({.index = 0, .memory_bytes = 64 << 20, .threads = threads});
}

}  // namespace

// ---- The clock ---------------------------------------------------------------------------------

TEST(work_starts_when_its_queue_and_its_engine_are_free) {
  Scheduler scheduler(0);
  CHECK_EQ(scheduler.enqueue(job(EngineId::ToCard, 1, 100)).end, 100);
  CHECK_EQ(scheduler.enqueue(job(EngineId::Compute, 1, 50)).end, 150);
  // Another queue: copies overlap the kernel, kernels take turns.
  CHECK_EQ(scheduler.enqueue(job(EngineId::ToHost, 2, 30)).end, 30);
  CHECK_EQ(scheduler.enqueue(job(EngineId::Compute, 2, 10)).end, 160);
  CHECK_EQ(scheduler.enqueue(job(EngineId::ToCard, 3, 5)).end, 105);
  CHECK_EQ(scheduler.now(), 160);
  scheduler.synchronize();
}

TEST(a_blocked_queue_starts_after_what_it_waits_for) {
  Scheduler scheduler(0);
  const Ticket copy = scheduler.enqueue(job(EngineId::ToCard, 1, 100));
  scheduler.block(2, copy);
  CHECK_EQ(scheduler.record(2).end, 100);
  CHECK_EQ(scheduler.enqueue(job(EngineId::Compute, 2, 10)).end, 110);
  scheduler.synchronize();
}

// ---- Order -------------------------------------------------------------------------------------

TEST(a_queue_runs_in_order_across_engines) {
  Scheduler scheduler(0);
  std::vector<int> order;
  for (int i = 0; i < 200; ++i) {
    const auto engine = static_cast<EngineId>(i * 7 % kEngines);
    scheduler.enqueue(job(engine, 4, 1, [&order, i] { order.push_back(i); }, i % 3 == 0));
  }
  scheduler.synchronize(4);
  CHECK_EQ(order.size(), 200);
  for (int i = 0; i < 200; ++i) CHECK_EQ(order[i], i);
}

TEST(a_block_holds_back_later_work_and_records_only) {
  Scheduler scheduler(0);
  Gate gate;
  std::atomic<bool> ran{false};
  const Ticket held = scheduler.enqueue(job(EngineId::ToCard, 1, 1, [&] { gate.wait(); }));
  const Ticket before = scheduler.record(2);
  scheduler.block(2, held);
  const Ticket event = scheduler.record(2);
  const Ticket after = scheduler.enqueue(job(EngineId::Compute, 2, 1, [&] { ran = true; }, true));
  CHECK(scheduler.is_done(before));
  CHECK(!scheduler.is_done(event));
  CHECK(!scheduler.is_done(after));
  CHECK(!scheduler.is_idle(2));
  CHECK(scheduler.is_idle(3));
  CHECK(!ran);
  gate.open();
  scheduler.wait(after);
  CHECK(ran);
  CHECK(scheduler.is_done(event));
}

TEST(copies_run_while_a_kernel_runs) {
  Scheduler scheduler(0);
  Gate gate;
  const Ticket kernel = scheduler.enqueue(job(EngineId::Compute, 1, 1, [&] { gate.wait(); }));
  // Would never end if the copies waited for the kernel.
  scheduler.wait(scheduler.enqueue(job(EngineId::ToCard, 2, 1)));
  scheduler.wait(scheduler.enqueue(job(EngineId::ToHost, 3, 1)));
  CHECK(!scheduler.is_done(kernel));
  gate.open();
  scheduler.wait(kernel);
}

TEST(small_work_runs_on_the_submitting_thread_when_it_may_start) {
  Scheduler scheduler(0);
  std::thread::id runner;
  const auto note = [&] { runner = std::this_thread::get_id(); };
  CHECK(scheduler.is_done(scheduler.enqueue(job(EngineId::Compute, 0, 1, note, true))));
  CHECK(runner == std::this_thread::get_id());
  Gate gate;
  scheduler.enqueue(job(EngineId::ToCard, 0, 1, [&] { gate.wait(); }));
  const Ticket later = scheduler.enqueue(job(EngineId::Compute, 0, 1, note, true));
  gate.open();
  scheduler.wait(later);
  CHECK(runner != std::this_thread::get_id());
}

TEST(keepalives_go_before_the_wait_returns_and_may_call_back) {
  Scheduler scheduler(0);
  auto alive = std::shared_ptr<int>(new int, [&](int* value) {
    delete value;
    scheduler.record(0);  // would deadlock under the lock
  });
  std::weak_ptr<int> watch = alive;
  Job held = job(EngineId::ToCard, 0, 1);
  held.alive = std::move(alive);
  scheduler.wait(scheduler.enqueue(std::move(held)));
  CHECK(watch.expired());
}

TEST(closing_with_queued_work_drops_it) {
  auto count = std::make_shared<int>(0);
  Gate started;
  {
    Scheduler scheduler(0);
    scheduler.enqueue(job(EngineId::Compute, 0, 1, [&] {
      started.open();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }));
    for (int i = 0; i < 100; ++i) {
      scheduler.enqueue(job(EngineId::Compute, 0, 1, [count] { ++*count; }));
    }
    started.wait();
  }
  CHECK_EQ(count.use_count(), 1);
}

TEST(foreign_tickets_and_queues_are_refused) {
  Scheduler scheduler(0);
  CHECK(says(MESSAGE_OF(std::invalid_argument, scheduler.wait({7, 0})), "ticket 7"));
  CHECK(says(MESSAGE_OF(std::invalid_argument, scheduler.record(65)), "queues 0 to 64"));
  CHECK(scheduler.is_done({}));
}

// ---- What goes wrong ---------------------------------------------------------------------------

TEST(a_fault_is_sticky_until_reset) {
  Scheduler scheduler(0);
  const auto fail = [] { throw CardFault(CardFault::Kind::CoreHang, "core 3 hangs"); };
  const Ticket ticket = scheduler.enqueue(job(EngineId::Compute, 1, 1, fail));
  CHECK_EQ(MESSAGE_OF(CardFault, scheduler.wait(ticket)), std::string("core 3 hangs"));
  bool ran = false;
  const Ticket dropped = scheduler.enqueue(job(EngineId::ToCard, 2, 1, [&] { ran = true; }, true));
  CHECK(scheduler.is_done(dropped));
  CHECK_EQ(MESSAGE_OF(CardFault, scheduler.synchronize()), std::string("core 3 hangs"));
  CHECK_EQ(MESSAGE_OF(CardFault, scheduler.synchronize(2)), std::string("core 3 hangs"));
  CHECK(!ran);
  scheduler.reset();
  scheduler.synchronize();
  scheduler.wait(scheduler.enqueue(job(EngineId::ToCard, 2, 1, [&] { ran = true; })));
  CHECK(ran);
}

TEST(an_overflow_is_told_once_and_work_goes_on) {
  Scheduler scheduler(0);
  const auto overflow = [] { throw ConversionOverflow("too large"); };
  const Ticket first = scheduler.enqueue(job(EngineId::ToCard, 1, 1, overflow));
  scheduler.synchronize(2);  // another queue: not concerned
  MESSAGE_OF(ConversionOverflow, scheduler.wait(first));
  scheduler.wait(first);
  scheduler.enqueue(job(EngineId::ToCard, 1, 1, overflow));
  scheduler.enqueue(job(EngineId::Compute, 1, 1));
  MESSAGE_OF(ConversionOverflow, scheduler.wait(scheduler.record(1)));
  scheduler.synchronize();
  // Another thread may hear of it first; the one that submitted it still does.
  const Ticket third = scheduler.enqueue(job(EngineId::ToCard, 1, 1, overflow));
  std::thread([&] { MESSAGE_OF(ConversionOverflow, scheduler.synchronize()); }).join();
  std::thread([&] { scheduler.synchronize(); }).join();
  MESSAGE_OF(ConversionOverflow, scheduler.wait(third));
  scheduler.synchronize();
}

TEST(an_unexpected_exception_becomes_a_fault) {
  Scheduler scheduler(3);
  scheduler.enqueue(job(EngineId::Host, 9, 0, [] { throw std::runtime_error("boom"); }));
  CHECK(says(MESSAGE_OF(CardFault, scheduler.synchronize()), "card 3, queue 9"));
}

// ---- The card ----------------------------------------------------------------------------------

TEST(data_goes_to_the_card_through_a_kernel_and_back) {
  for (const int64_t sticks : {2, 40000}) {  // small enough to run inline, and not
    auto card = open_card();
    const int64_t count = sticks * 32;
    std::vector<int32_t> from(count), to(count);
    for (int64_t i = 0; i < count; ++i) from[i] = static_cast<int32_t>(i * 7 - 100);
    const Address x = card->allocate(count * 4, 0), y = card->allocate(count * 4, 0);
    const ProgramId program = card->load(negation(sticks));
    card->copy_to_card(0, x, integers(count), from.data(), nullptr);
    const std::vector<Binding> bindings{{x, count * 4}, {y, count * 4}};
    card->launch(0, program, bindings);
    card->unload(program);
    card->wait(card->copy_to_host(0, y, integers(count), to.data(), nullptr));
    for (int64_t i = 0; i < count; ++i) CHECK_EQ(to[i], -from[i]);
    const Counters counters = card->counters();
    CHECK_EQ(counters.bytes_to_card, count * 4);
    CHECK_EQ(counters.bytes_read, count * 4);
    CHECK_EQ(counters.launches, 1);
    CHECK_EQ(counters.transfers, 2);
    CHECK_EQ(card->now(), 2 * cost::dma_nanoseconds(count * 4) + counters.compute_busy);
  }
}

TEST(padding_is_written_as_zeros_and_moves_no_bytes) {
  auto card = open_card();
  const Address x = card->allocate(256, 0);
  std::vector<int32_t> data(64, -1);
  card->copy_to_card(0, x, integers(64), data.data(), nullptr);
  auto padding = integers(64);
  padding->nests = {{{2, 3}, {32, 1}, {}, 29, 0, true}};
  card->copy_to_card(0, x, padding, nullptr, nullptr);
  card->wait(card->copy_to_host(0, x, integers(64), data.data(), nullptr));
  for (int i = 0; i < 64; ++i) CHECK_EQ(data[i], i % 32 < 29 ? -1 : 0);
  CHECK_EQ(card->counters().bytes_to_card, 256);
}

TEST(descriptors_and_bindings_that_leave_their_memory_are_refused) {
  auto card = open_card();
  const Address x = card->allocate(256, 0);
  std::vector<int32_t> data(64);
  const auto refuse = [&](const std::shared_ptr<DmaDescriptor>& how, const char* reason) {
    const std::string text =
        MESSAGE_OF(std::invalid_argument, card->copy_to_card(0, x, how, data.data(), nullptr));
    CHECK(says(text, reason));
  };
  refuse(integers(65), "leaves the block");
  auto how = integers(64);
  how->nests[0].range = {65};
  refuse(how, "on the card");
  how = integers(64);
  how->nests[0].host_stride = {INT64_MIN};
  refuse(how, "on the host");
  how = integers(64);
  how->nests[0].range = {-1};
  refuse(how, "negative");
  how = integers(64);
  how->nests[0].device_stride = {1, 1};
  refuse(how, "differ in number");
  how = integers(64);
  how->device_format = DataFormat::SENINT4;
  refuse(how, "no conversion");
  how = integers(64);
  how->host_format = static_cast<HostFormat>(99);
  refuse(how, "no conversion");

  const ProgramId program = card->load(negation(2));
  const auto launch = [&](std::vector<Binding> bindings) {
    return MESSAGE_OF(std::invalid_argument, card->launch(0, program, bindings));
  };
  CHECK(says(launch({{x, 256}}), "1 bindings"));
  CHECK(says(launch({{x, 256}, {x, 128}}), "only 128 are bound"));
  CHECK(says(launch({{x, 256}, {x + 64, 256}}), "stick"));
  CHECK(says(launch({{x, 256}, {x + 128, 256}}), "not in one allocated block"));
  CHECK(says(MESSAGE_OF(std::invalid_argument, card->launch(0, 99, {})), "not loaded"));
}

TEST(int64_beyond_32_bits_is_an_overflow_of_that_transfer) {
  auto card = open_card();
  const Address x = card->allocate(128, 0);
  const std::vector<int64_t> good(32, 5), bad(32, int64_t{1} << 40);
  const auto how = integers(32, HostFormat::Int64);
  const Ticket ticket = card->copy_to_card(1, x, how, bad.data(), nullptr);
  CHECK(says(MESSAGE_OF(ConversionOverflow, card->wait(ticket)), "32 of the values"));
  card->wait(card->copy_to_card(1, x, how, good.data(), nullptr));
}

TEST(injected_faults_name_the_place) {
  using Kind = CardFault::Kind;
  auto card = open_card();
  const Address x = card->allocate(256, 0), y = card->allocate(256, 0);
  const ProgramId program = card->load(negation(2));
  const std::vector<Binding> bindings{{x, 256}, {y, 256}};
  std::vector<int32_t> data(64);

  card->inject({.kind = Kind::DmaError, .after = 1});
  card->wait(card->copy_to_card(3, x, integers(64), data.data(), nullptr));
  card->copy_to_host(3, x, integers(64), data.data(), nullptr);
  CHECK(says(MESSAGE_OF(CardFault, card->synchronize()), "card 0, queue 3: DMA error"));
  card->reset();

  card->inject({.kind = Kind::EccError, .address = y + 130});
  card->wait(card->copy_to_card(0, x, integers(64), data.data(), nullptr));  // not that stick
  card->launch(5, program, bindings);
  CHECK(says(MESSAGE_OF(CardFault, card->synchronize(5)), "step 0 (neg_int), core 0"));
  card->reset();

  card->inject({.kind = Kind::CoreHang, .core = 7});
  card->wait(card->launch(0, program, bindings));  // core 7 takes no part
  card->reset();
  card->inject({.kind = Kind::CoreHang, .core = 0});
  card->launch(0, program, bindings);
  CHECK(says(MESSAGE_OF(CardFault, card->synchronize()), "core 0 hangs in step 0"));
  card->reset();

  card->inject({.kind = Kind::CardLost});
  card->launch(0, program, bindings);
  CHECK(says(MESSAGE_OF(CardFault, card->wait(card->record(0))), "lost"));
  card->reset();
  card->wait(card->launch(0, program, bindings));
}

TEST(host_functions_run_in_order_with_the_rest) {
  auto card = open_card();
  const Address x = card->allocate(128, 0);
  std::vector<int32_t> data(32, 1), seen(32);
  card->copy_to_card(2, x, integers(32), data.data(), nullptr);
  int32_t value = 0;
  card->copy_to_host(2, x, integers(32), seen.data(), nullptr);
  card->host_function(2, [&] { value = seen[0]; });
  card->synchronize(2);
  CHECK_EQ(value, 1);
}

TEST(times_are_the_same_for_any_number_of_threads) {
  std::vector<Nanoseconds> ends;
  for (const int threads : {1, 2, 5}) {
    auto card = open_card(threads);
    const int64_t count = 64 * 1024;
    std::vector<int32_t> data(count);
    const Address x = card->allocate(count * 4, 0), y = card->allocate(count * 4, 0);
    const ProgramId program = card->load(negation(count / 32));
    const std::vector<Binding> bindings{{x, count * 4}, {y, count * 4}};
    for (int i = 0; i < 20; ++i) {
      card->copy_to_card(i % 3, x, integers(count), data.data(), nullptr);
      card->block(7, card->record(i % 3));
      card->launch(7, program, bindings);
      card->copy_to_host(i % 2, y, integers(count), data.data(), nullptr);
    }
    card->synchronize();
    ends.push_back(card->now());
  }
  CHECK_EQ(ends[0], ends[1]);
  CHECK_EQ(ends[0], ends[2]);
}

// Eight threads allocate, copy, compute, order and free: nothing is lost, nothing is torn. Meant
// for ThreadSanitizer too.
TEST(eight_threads_share_a_card) {
  auto card = open_card(3);
  const ProgramId program = card->load(negation(4));
  constexpr int kThreads = 8, kRounds = 1250;
  std::atomic<int> wrong{0};
  std::latch start(kThreads);
  const auto work = [&](int id) {
    std::mt19937 random(id);
    std::vector<int32_t> data(128), back(128);
    start.arrive_and_wait();
    for (int round = 0; round < kRounds; ++round) {
      const QueueId queue = static_cast<int>(random() % kQueues);
      const QueueId other = static_cast<int>(random() % kQueues);
      const Address x = card->allocate(512, queue);
      const Address y = card->allocate(512 + random() % 100000, other);
      if (round % 10 == 0) {
        std::fill(data.begin(), data.end(), id * 10000 + round);
        card->copy_to_card(queue, x, integers(128), data.data(), nullptr);
        card->block(other, card->record(queue));
        card->record_use(x, other);
        const std::vector<Binding> bindings{{x, 512}, {y, 512}};
        card->launch(other, program, bindings);
        const Ticket last = card->copy_to_host(other, y, integers(128), back.data(), nullptr);
        if (round % 20 == 0) {
          card->free(x);
          card->wait(last);
          card->free(y);
        } else {
          card->synchronize(other);
          card->free(y);
          card->free(x);
        }
        for (int i = 0; i < 128; ++i) wrong += back[i] != -data[i];
      } else {
        if (card->memory_stats().allocations.current < 2) ++wrong;
        card->is_idle(queue);
        if (card->is_done(card->record(other))) card->now();
        card->free(y);
        card->free(card->allocate(256, other));
        card->free(x);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) threads.emplace_back(work, id);
  for (std::thread& thread : threads) thread.join();
  card->synchronize();
  CHECK_EQ(wrong.load(), 0);
  const MemoryStats stats = card->memory_stats();
  CHECK_EQ(stats.allocated_bytes.current, 0);
  CHECK_EQ(stats.allocations.current, 0);
  CHECK_EQ(stats.allocations.allocated, stats.allocations.freed);
  CHECK_EQ(stats.allocated_bytes.allocated, stats.allocated_bytes.freed);
}
