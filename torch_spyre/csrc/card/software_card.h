// The software card: memory, queues, DMA and cores behind the driver interface.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "checker.h"
#include "driver.h"
#include "engine.h"
#include "executor.h"
#include "faults.h"
#include "memory.h"
#include "program.h"
#include "threads.h"

namespace spyre {

inline constexpr int64_t kCardMemory = int64_t{112} << 30;  // usable after ECC

class SoftwareCard final : public Driver {
 public:
  explicit SoftwareCard(const CardConfig& config);
  ~SoftwareCard() override;

  const CardProperties& properties() const override { return properties_; }

  Address allocate(int64_t bytes, QueueId queue) override;
  void free(Address address) override;
  void record_use(Address address, QueueId queue) override;
  MemoryStats memory_stats() const override;
  void reset_peak_stats() override;
  void reset_accumulated_stats() override;
  void empty_cache() override;
  int64_t free_memory() const override;

  Ticket copy_to_card(QueueId queue, Address to, std::shared_ptr<const DmaDescriptor> how,
                      const void* from, Keepalive alive) override;
  Ticket copy_to_host(QueueId queue, Address from, std::shared_ptr<const DmaDescriptor> how,
                      void* to, Keepalive alive) override;
  ProgramId load(std::span<const std::byte> program, const ProgramNames& names = {}) override;
  void unload(ProgramId program) override;
  ProgramFigures figures(ProgramId program) const override;
  Ticket launch(QueueId queue, ProgramId program, std::span<const Binding> bindings) override;
  Ticket host_function(QueueId queue, std::function<void()> function) override;
  Ticket exchange(Exchange exchange) override;
  void read_now(Address from, const DmaDescriptor& how, void* to) override;
  void write_now(Address to, const DmaDescriptor& how, const void* from) override;

  Ticket record(QueueId queue) override;
  void block(QueueId queue, Ticket until) override;
  bool is_done(Ticket ticket) const override;
  bool is_idle(QueueId queue) const override;
  void wait(Ticket ticket) override;
  void synchronize(QueueId queue) override;
  void synchronize() override;

  Counters counters() const override;
  Nanoseconds now() const override;
  void inject(const Injection& injection) override;
  void reset() override;

 private:
  void check_transfer(Address address, const DmaDescriptor* how) const;
  int64_t put(Address to, const DmaDescriptor& how, const void* from);
  void take(Address from, const DmaDescriptor& how, void* to, const std::string& where);
  void check_bindings(const Program& program, std::span<const Binding> bindings) const;
  struct Loaded {
    std::shared_ptr<const Program> program;
    std::shared_ptr<const ProgramNames> names;
  };
  Loaded find_program(ProgramId program) const;
  void run_kernel(const Loaded& loaded, std::span<const Binding> bindings, QueueId queue);
  std::string where(QueueId queue) const;
  Ticket enqueue_transfer(Job job, const char* direction, Address address,
                          const DmaDescriptor& how);
  void count(const std::function<void(Counters&)>& change);

  const int index_;
  const CardProperties properties_;
  CardTelemetry* const telemetry_;  // null: nothing is published
  ThreadPool pool_;
  Executor executor_;
  const std::unique_ptr<Checker> checker_;  // null: not in checked mode
  FaultInjector faults_;
  mutable std::mutex mutex_;  // of the three below
  std::map<ProgramId, Loaded> programs_;
  ProgramId last_program_ = 0;
  Counters counters_;
  Scheduler scheduler_;
  Memory memory_;
};

}  // namespace spyre
