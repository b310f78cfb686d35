#include "runtime/card_program.h"

#include <mutex>

#include "runtime/activity.h"
#include "runtime/errors.h"
#include "runtime/stream.h"

namespace spyre {

ProgramId CardProgram::loaded(c10::DeviceIndex device) const {
  if (const ProgramId known = loaded_[device].load(std::memory_order_acquire)) {
    return known - 1;
  }
  static std::mutex loading;
  const std::lock_guard lock(loading);
  if (const ProgramId known = loaded_[device].load()) {
    return known - 1;
  }
  const ProgramId id = translated([&] {
    return driver(device).load(std::as_bytes(std::span(bytes.data(), bytes.size())), names);
  });
  loaded_[device].store(id + 1, std::memory_order_release);
  return id;
}

void CardProgram::launch(c10::DeviceIndex device, std::span<const Binding> bindings,
                         std::string_view name) const {
  const ProgramId id = loaded(device);
  const QueueId queue = current_queue(device);
  const int64_t asked = host_now();
  const Ticket ticket = translated([&] { return driver(device).launch(queue, id, bindings); });
  if (asked != 0) {
    const ProgramFigures figures = driver(device).figures(id);
    Activity activity;
    activity.asked = asked;
    activity.name = names.kernel.empty() ? std::string(name) : names.kernel;
    activity.device = device;
    activity.queue = queue;
    activity.bytes_read = figures.bytes_read;
    activity.bytes_written = figures.bytes_written;
    activity.cores = figures.cores;
    activity.lx_bytes = figures.lx_bytes;
    record_activity(std::move(activity), ticket);
  }
}

CardProgram::~CardProgram() {
  for (size_t device = 0; device < loaded_.size(); ++device) {
    if (const ProgramId id = loaded_[device].load(); id != 0 && !is_bad_fork()) {
      driver(static_cast<c10::DeviceIndex>(device)).unload(id - 1);
    }
  }
}

}  // namespace spyre
