#include "runtime/cards.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "card/telemetry.h"
#include "runtime/env.h"
#include "runtime/errors.h"
#include "runtime/python_lock.h"

namespace spyre {
namespace {

// Deliberately never destroyed: tensors that outlive main() still free their memory through it.
struct Registry {
  std::mutex opening;
  std::unique_ptr<TelemetryPage> page;  // null: nothing is published
  std::array<std::atomic<Driver*>, kMaxCards> open{};
  std::atomic<bool> bad_fork{false};
};

Registry& registry() {
  static Registry* instance = new Registry();
  return *instance;
}

thread_local c10::DeviceIndex this_thread_device = -1;

void mark_bad_fork() { registry().bad_fork = any_open(); }

void remove_page() {
  if (registry().page != nullptr) registry().page->unlink();
}

// Before the first card opens: what a fork and the end of the process have to know.
void prepare(const Environment& env) {
  pthread_atfork(nullptr, nullptr, mark_bad_fork);
  if (!env.monitor) return;
  registry().page = TelemetryPage::create();
  std::atexit(remove_page);
}

Driver& open_driver_locked(c10::DeviceIndex index) {
  Registry& cards = registry();
  const std::lock_guard lock(cards.opening);
  if (Driver* opened = cards.open[index].load()) {
    return *opened;
  }
  const Environment& env = environment();
  static std::once_flag prepared;
  std::call_once(prepared, prepare, env);
  CardConfig config;
  config.index = env.visible[index];
  config.memory_bytes = env.card_memory;
  config.threads = env.card_threads;
  config.check = env.card_check;
  if (cards.page != nullptr) config.telemetry = &cards.page->card(config.index);
  Driver* opened = open_software_card(config).release();
  cards.open[index].store(opened);
  return *opened;
}

Driver& open_driver(c10::DeviceIndex index) {
  return translated([&]() -> Driver& { return open_driver_locked(index); });
}

}  // namespace

c10::DeviceIndex device_count() noexcept {
  const Environment* env = environment_or_null();
  return env == nullptr ? 0 : static_cast<c10::DeviceIndex>(env->visible.size());
}

Driver& driver(c10::DeviceIndex index) {
  Registry& cards = registry();
  TORCH_CHECK(!cards.bad_fork,
              "Cannot re-initialize Spyre in forked subprocess. To use Spyre with "
              "multiprocessing, you must use the 'spawn' start method, or fork before the first "
              "use of the device");
  if (index >= 0 && index < kMaxCards) {
    if (Driver* opened = cards.open[index].load(std::memory_order_acquire)) {
      return *opened;
    }
  }
  return open_driver(checked_index(index));
}

bool is_open(c10::DeviceIndex index) noexcept {
  return index >= 0 && index < kMaxCards && registry().open[index].load() != nullptr;
}

bool any_open() noexcept {
  for (c10::DeviceIndex index = 0; index < kMaxCards; ++index) {
    if (is_open(index)) {
      return true;
    }
  }
  return false;
}

bool is_bad_fork() noexcept { return registry().bad_fork; }

void wait_for(c10::DeviceIndex index, Ticket ticket) {
  Driver& card = driver(index);
  const WithoutPythonLock unlocked;
  translated([&] { card.wait(ticket); });
}

void wait_for_queue(c10::DeviceIndex index, QueueId queue) {
  Driver& card = driver(index);
  const WithoutPythonLock unlocked;
  translated([&] { card.synchronize(queue); });
}

void wait_for_device(c10::DeviceIndex index) {
  if (is_open(checked_index(index))) {
    Driver& card = driver(index);
    const WithoutPythonLock unlocked;
    translated([&] { card.synchronize(); });
  }
}

c10::DeviceIndex current_device() {
  if (this_thread_device < 0) {
    this_thread_device = static_cast<c10::DeviceIndex>(environment().default_device);
  }
  return this_thread_device;
}

void set_current_device(c10::DeviceIndex index) { this_thread_device = checked_index(index); }

void set_current_device_unchecked(c10::DeviceIndex index) noexcept { this_thread_device = index; }

c10::DeviceIndex checked_index(c10::DeviceIndex index) {
  const auto count = static_cast<int>(environment().visible.size());
  if (index == -1) {
    return current_device();
  }
  TORCH_CHECK(index >= 0 && index < count, "Spyre device index ", static_cast<int>(index),
              " does not exist: this process sees ", count, count == 1 ? " card" : " cards",
              " (AIU_WORLD_SIZE and SPYRE_DEVICES decide how many)");
  return index;
}

}  // namespace spyre
