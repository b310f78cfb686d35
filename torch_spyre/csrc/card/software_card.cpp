#include "software_card.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../cost/cost.h"
#include "../cost/link.h"
#include "dma.h"
#include "host_memory.h"
#include "telemetry.h"

namespace spyre {
namespace {

// Work up to these sizes takes less time than waking an engine (some 50 us): the submitting thread
// does it, if it may start at once.
constexpr int64_t kInlineElements = 64 * 1024;
constexpr int64_t kInlineBytes = 256 * 1024;

CardProperties make_properties(const CardConfig& config) {
  if (config.memory_bytes < 0) throw std::invalid_argument("a card can't have negative memory");
  if (config.threads < 0) throw std::invalid_argument("a card can't have negative threads");
  CardProperties properties;
  properties.name = "IBM Spyre (software card)";
  properties.total_memory = config.memory_bytes == 0 ? kCardMemory : config.memory_bytes;
  properties.cores = kCores;
  properties.lx_bytes = kLxBytes;
  properties.stick_bytes = kStickBytes;
  properties.host_threads = config.threads == 0 ? host_threads() : config.threads;
  const cost::Limits limits = cost::limits();
  properties.mac_rate = kCores * limits.macs;
  properties.memory_rate = limits.memory_bytes;
  properties.pcie_rate = limits.pcie_bytes;
  return properties;
}

// Addresses are below this, however the memory rounds its size.
int64_t address_space_bytes(int64_t memory) { return memory + 3 * kGranuleBytes; }

// What the card may take when every byte of it has a shadow.
int64_t half_of_host_memory() {
  return static_cast<int64_t>(static_cast<double>(available_host_memory()) / kCheckedHostBytes);
}

void check_queue(QueueId queue) {
  if (queue < 0 || queue >= kQueues) {
    throw std::invalid_argument("a card has queues 0 to " + std::to_string(kQueues - 1) + ", not " +
                                std::to_string(queue));
  }
}

}  // namespace

SoftwareCard::SoftwareCard(const CardConfig& config)
    : index_(config.index),
      properties_(make_properties(config)),
      telemetry_(config.telemetry),
      pool_(properties_.host_threads),
      executor_(pool_),
      checker_(config.check == CheckMode::Off
                   ? nullptr
                   : std::make_unique<Checker>(
                         config.check, address_space_bytes(properties_.total_memory), pool_)),
      faults_(config.index),
      scheduler_(config.index, telemetry_),
      memory_(config.index, properties_.total_memory, scheduler_,
              checker_ == nullptr ? available_host_memory : half_of_host_memory, telemetry_) {
  if (telemetry_ == nullptr) return;
  telemetry_->memory_total.store(properties_.total_memory, std::memory_order_relaxed);
  telemetry_->is_open.store(1, std::memory_order_release);
}

// Dropping queued work releases what it kept alive, which may free memory: the queues go first.
SoftwareCard::~SoftwareCard() {
  scheduler_.stop();
  if (telemetry_ != nullptr) telemetry_->is_open.store(0, std::memory_order_relaxed);
}

// ---- Memory ------------------------------------------------------------------------------------

Address SoftwareCard::allocate(int64_t bytes, QueueId queue) {
  check_queue(queue);
  const Address address = memory_.allocate(bytes, queue);
  if (checker_ == nullptr) return address;
  const int64_t whole = (bytes + kStickBytes - 1) / kStickBytes * kStickBytes;
  if (scheduler_.is_idle(queue)) {
    checker_->allocated(address, whole);
    return address;
  }
  // In the order of the queue: work that used the block before it was freed is still to come.
  Job job;
  job.engine = EngineId::Host;
  job.queue = queue;
  job.run = [this, address, whole] { checker_->allocated(address, whole); };
  scheduler_.enqueue(std::move(job));
  return address;
}
void SoftwareCard::free(Address address) { memory_.free(address); }
void SoftwareCard::record_use(Address address, QueueId queue) {
  check_queue(queue);
  memory_.record_use(address, queue);
}
MemoryStats SoftwareCard::memory_stats() const { return memory_.stats(); }
void SoftwareCard::reset_peak_stats() { memory_.reset_peak_stats(); }
void SoftwareCard::reset_accumulated_stats() { memory_.reset_accumulated_stats(); }
void SoftwareCard::empty_cache() { memory_.empty_cache(); }
int64_t SoftwareCard::free_memory() const { return memory_.free_bytes(); }

// ---- Transfers ---------------------------------------------------------------------------------

void SoftwareCard::check_transfer(Address address, const DmaDescriptor* how) const {
  if (how == nullptr) throw std::invalid_argument("a transfer without a descriptor");
  check_descriptor(*how);
  if (address % static_cast<Address>(element_bytes(how->device_format)) != 0) {
    throw std::invalid_argument("a transfer starts at an element, not at address " +
                                std::to_string(address));
  }
  if (!memory_.is_allocated(address, how->device_bytes)) {
    throw std::invalid_argument("a transfer of " + std::to_string(how->device_bytes) +
                                " bytes at address " + std::to_string(address) +
                                " leaves the block allocated there");
  }
}

// Returns how many values did not fit.
int64_t SoftwareCard::put(Address to, const DmaDescriptor& how, const void* from) {
  const int64_t misfits =
      run_to_card(how, static_cast<const std::byte*>(from), memory_.data() + to, pool_);
  if (checker_ != nullptr) checker_->copied_to_card(to, how, memory_.data());
  return misfits;
}

void SoftwareCard::take(Address from, const DmaDescriptor& how, void* to,
                        const std::string& where) {
  if (checker_ != nullptr) checker_->check_copy_to_host(from, how, where);
  run_to_host(how, memory_.data() + from, static_cast<std::byte*>(to), pool_);
}

Ticket SoftwareCard::copy_to_card(QueueId queue, Address to,
                                  std::shared_ptr<const DmaDescriptor> how, const void* from,
                                  Keepalive alive) {
  check_queue(queue);
  check_transfer(to, how.get());
  Job job;
  job.engine = EngineId::ToCard;
  job.queue = queue;
  job.alive = std::move(alive);
  job.run = [this, queue, how, from, to] {
    const int64_t misfits = put(to, *how, from);
    if (misfits == 0) return;
    throw ConversionOverflow(std::to_string(misfits) + " of the values copied to Spyre card " +
                             std::to_string(index_) + " (queue " + std::to_string(queue) +
                             ") do not fit " + std::string(format_info(how->device_format).name) +
                             ": " + std::string(host_format_name(how->host_format)) +
                             " is held in 32 bits on the card");
  };
  return enqueue_transfer(std::move(job), "to the card", to, *how);
}

Ticket SoftwareCard::copy_to_host(QueueId queue, Address from,
                                  std::shared_ptr<const DmaDescriptor> how, void* to,
                                  Keepalive alive) {
  check_queue(queue);
  check_transfer(from, how.get());
  Job job;
  job.engine = EngineId::ToHost;
  job.queue = queue;
  job.alive = std::move(alive);
  job.run = [this, queue, how, to, from] { take(from, *how, to, where(queue)); };
  return enqueue_transfer(std::move(job), "to the host", from, *how);
}

Ticket SoftwareCard::enqueue_transfer(Job job, const char* direction, Address address,
                                      const DmaDescriptor& how) {
  const int64_t bytes = link_bytes(how);
  const bool is_to_card = job.engine == EngineId::ToCard;
  job.duration = cost::dma_nanoseconds(bytes);
  job.is_small = bytes <= kInlineBytes && how.device_bytes <= kInlineBytes;
  const DeviceRange range = device_range(how);
  if (auto fault =
          faults_.at_transfer(job.queue, direction, address + range.first, address + range.end)) {
    job.run = [fault = *fault] { throw fault; };
  }
  count([&](Counters& counters) {
    ++counters.transfers;
    (is_to_card ? counters.bytes_to_card : counters.bytes_to_host) += bytes;
    (is_to_card ? counters.to_card_busy : counters.to_host_busy) += job.duration;
  });
  return scheduler_.enqueue(std::move(job));
}

// ---- Programs ----------------------------------------------------------------------------------

ProgramId SoftwareCard::load(std::span<const std::byte> program, const ProgramNames& names) {
  Loaded loaded{load_program(program), nullptr};
  const size_t steps = loaded.program->steps.size();
  if (!names.steps.empty() && names.steps.size() != steps) {
    throw ProgramError("names for " + std::to_string(names.steps.size()) +
                       " steps of a program with " + std::to_string(steps));
  }
  if (checker_ != nullptr) loaded.names = std::make_shared<const ProgramNames>(names);
  std::lock_guard lock(mutex_);
  programs_.emplace(++last_program_, std::move(loaded));
  return last_program_;
}

void SoftwareCard::unload(ProgramId program) {
  Loaded last_use;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  if (auto found = programs_.find(program); found != programs_.end()) {
    last_use = std::move(found->second);
    programs_.erase(found);
  }
}

ProgramFigures SoftwareCard::figures(ProgramId id) const {
  const Loaded loaded = find_program(id);
  const Program& program = *loaded.program;
  uint32_t cores = 0;
  for (const StepRecord& step : program.steps) cores |= step.cores;
  return {program.nanoseconds,
          program.bytes_read,
          program.bytes_written,
          std::popcount(cores),
          *std::max_element(program.lx_high_water.begin(), program.lx_high_water.end()),
          program.figures};
}

SoftwareCard::Loaded SoftwareCard::find_program(ProgramId program) const {
  std::lock_guard lock(mutex_);
  auto found = programs_.find(program);
  if (found == programs_.end()) {
    throw std::invalid_argument("program " + std::to_string(program) + " is not loaded");
  }
  return found->second;
}

void SoftwareCard::check_bindings(const Program& program, std::span<const Binding> bindings) const {
  const auto fail = [](size_t symbol, const std::string& reason) {
    throw std::invalid_argument("launch: symbol " + std::to_string(symbol) + ": " + reason);
  };
  if (bindings.size() != program.symbols.size()) {
    throw std::invalid_argument("launch: " + std::to_string(bindings.size()) +
                                " bindings for a program with " +
                                std::to_string(program.symbols.size()) + " symbols");
  }
  for (size_t i = 0; i < bindings.size(); ++i) {
    const SymbolRecord& symbol = program.symbols[i];
    const Binding& binding = bindings[i];
    switch (static_cast<SymbolKind>(symbol.kind)) {
      case SymbolKind::Address:
        if (binding.value % kStickBytes != 0) fail(i, "the address is not that of a stick");
        if (binding.bytes < symbol.bytes) {
          fail(i, "the program uses " + std::to_string(symbol.bytes) + " bytes, only " +
                      std::to_string(binding.bytes) + " are bound");
        }
        if (!memory_.is_allocated(binding.value, binding.bytes)) {
          fail(i, "the " + std::to_string(binding.bytes) + " bytes at address " +
                      std::to_string(binding.value) + " are not in one allocated block");
        }
        break;
      case SymbolKind::Scalar:
        if (binding.value > UINT32_MAX) fail(i, "a scalar is a word of 32 bits");
        break;
      case SymbolKind::Extent:
        if (binding.value > static_cast<uint64_t>(symbol.bytes)) {
          fail(i, "length " + std::to_string(binding.value) + " is above the maximum " +
                      std::to_string(symbol.bytes));
        }
        break;
    }
  }
}

Ticket SoftwareCard::launch(QueueId queue, ProgramId id, std::span<const Binding> bindings) {
  check_queue(queue);
  const Loaded loaded = find_program(id);
  const std::shared_ptr<const Program>& program = loaded.program;
  check_bindings(*program, bindings);
  Job job;
  job.engine = EngineId::Compute;
  job.queue = queue;
  job.duration = program->nanoseconds;
  job.is_small = program->work <= kInlineElements;
  if (auto fault = faults_.at_launch(queue, *program, bindings)) {
    job.run = [fault = *fault] { throw fault; };
  } else {
    job.run = [this, loaded, queue,
               bound = std::vector<Binding>(bindings.begin(), bindings.end())] {
      run_kernel(loaded, bound, queue);
    };
  }
  count([&](Counters& counters) {
    ++counters.launches;
    counters.bytes_read += program->bytes_read;
    counters.bytes_written += program->bytes_written;
    counters.pt_busy += program->pt_busy;
    counters.sfp_busy += program->sfp_busy;
    counters.memory_busy += program->memory_busy;
    counters.lx_busy += program->lx_busy;
    counters.compute_busy += program->nanoseconds;
    for (int core = 0; core < kCores; ++core) {
      counters.lx_high_water[core] =
          std::max(counters.lx_high_water[core], program->lx_high_water[core]);
    }
  });
  return scheduler_.enqueue(std::move(job));
}

void SoftwareCard::run_kernel(const Loaded& loaded, std::span<const Binding> bindings,
                              QueueId queue) {
  if (checker_ == nullptr) {
    executor_.run(*loaded.program, bindings, memory_.data());
    return;
  }
  Touched touched;
  checker_->run(*loaded.program, *loaded.names, bindings, memory_.data(), where(queue), touched);
  std::lock_guard lock(mutex_);
  counters_.checked_bytes_read += touched.read;
  counters_.checked_bytes_written += touched.written;
}

std::string SoftwareCard::where(QueueId queue) const {
  return "Spyre card " + std::to_string(index_) + ", queue " + std::to_string(queue) + ": ";
}

Ticket SoftwareCard::host_function(QueueId queue, std::function<void()> function) {
  Job job;
  job.engine = EngineId::Host;
  job.queue = queue;
  job.run = std::move(function);
  return scheduler_.enqueue(std::move(job));
}

Ticket SoftwareCard::exchange(Exchange exchange) {
  const Nanoseconds out = cost::link_nanoseconds(exchange.bytes_out);
  const Nanoseconds in = cost::link_nanoseconds(exchange.bytes_in);
  count([&](Counters& counters) {
    ++counters.exchanges;
    counters.bytes_out += exchange.bytes_out;
    counters.bytes_in += exchange.bytes_in;
    counters.link_busy += std::max(out, in);
  });
  return scheduler_.enqueue_exchange(std::move(exchange), out, in);
}

void SoftwareCard::read_now(Address from, const DmaDescriptor& how, void* to) {
  check_transfer(from, &how);
  take(from, how, to, "Spyre card " + std::to_string(index_) + ", an exchange: ");
}

void SoftwareCard::write_now(Address to, const DmaDescriptor& how, const void* from) {
  check_transfer(to, &how);
  put(to, how, from);
}

// ---- Order and state ---------------------------------------------------------------------------

Ticket SoftwareCard::record(QueueId queue) { return scheduler_.record(queue); }
void SoftwareCard::block(QueueId queue, Ticket until) { scheduler_.block(queue, until); }
bool SoftwareCard::is_done(Ticket ticket) const { return scheduler_.is_done(ticket); }
bool SoftwareCard::is_idle(QueueId queue) const { return scheduler_.is_idle(queue); }
void SoftwareCard::wait(Ticket ticket) { scheduler_.wait(ticket); }
void SoftwareCard::synchronize(QueueId queue) { scheduler_.synchronize(queue); }
void SoftwareCard::synchronize() { scheduler_.synchronize(); }

// Work that a faulty card drops is not counted.
void SoftwareCard::count(const std::function<void(Counters&)>& change) {
  if (scheduler_.has_fault()) return;
  std::lock_guard lock(mutex_);
  change(counters_);
  if (telemetry_ != nullptr) telemetry_->publish(counters_);
}

Counters SoftwareCard::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

Nanoseconds SoftwareCard::now() const { return scheduler_.now(); }
void SoftwareCard::inject(const Injection& injection) { faults_.inject(injection); }

void SoftwareCard::reset() {
  faults_.clear();
  executor_.cancel();
  if (checker_ != nullptr) checker_->cancel();
  scheduler_.reset();
  if (checker_ != nullptr) checker_->resume();
  executor_.resume();
}

std::unique_ptr<Driver> open_software_card(const CardConfig& config) {
  return std::make_unique<SoftwareCard>(config);
}

}  // namespace spyre
