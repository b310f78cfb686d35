#include "runtime/card_program.h"

#include "runtime/errors.h"
#include "runtime/stream.h"

namespace spyre {

ProgramId CardProgram::loaded(c10::DeviceIndex device) const {
  if (const ProgramId known = loaded_[device].load(std::memory_order_acquire)) {
    return known - 1;
  }
  static std::mutex loading;
  const auto load = [&] {
    const std::lock_guard lock(loading);
    if (const ProgramId known = loaded_[device].load()) {
      return known - 1;
    }
    const auto program = std::as_bytes(std::span(bytes.data(), bytes.size()));
    const ProgramId id = driver(device).load(program, names);
    loaded_[device].store(id + 1, std::memory_order_release);
    return id;
  };
  return translated(load, Phase::Launch);
}

std::shared_ptr<const ProgramFigures> CardProgram::figures(c10::DeviceIndex device,
                                                           ProgramId id) const {
  std::call_once(has_figures_, [&] {
    figures_ = std::make_shared<const ProgramFigures>(driver(device).figures(id));
  });
  return figures_;
}

void CardProgram::launch(c10::DeviceIndex device, std::span<const Binding> bindings,
                         std::string_view name,
                         const std::shared_ptr<const StepLabels>& labels) const {
  const ProgramId id = loaded(device);
  const QueueId queue = current_queue(device);
  const int64_t asked = host_now();
  const auto launch = [&] { return driver(device).launch(queue, id, bindings); };
  const Ticket ticket = translated(launch, Phase::Launch);
  if (asked != 0) {
    Activity activity;
    activity.asked = asked;
    activity.name = name;
    activity.device = device;
    activity.queue = queue;
    activity.program = static_cast<int64_t>(id);
    activity.figures = figures(device, id);
    activity.bytes_read = activity.figures->bytes_read;
    activity.bytes_written = activity.figures->bytes_written;
    activity.labels = labels;
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
