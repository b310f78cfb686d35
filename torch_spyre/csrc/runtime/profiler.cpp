// torch.profiler with ProfilerActivity.PrivateUse1: the card's work as device events.
#define USE_KINETO  // as the wheel is built
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/activity.h"

namespace spyre {
namespace {

using libkineto::ActivityType;

// Some kernels do what other devices have engines for; people look for them by these names.
struct Shown {
  ActivityType type;
  std::string name;
};

Shown shown(const Activity& activity) {
  if (activity.kind != Activity::Kind::Kernel) return {ActivityType::GPU_MEMCPY, activity.name};
  if (activity.name == "spyre::copy") return {ActivityType::GPU_MEMCPY, "Memcpy DtoD"};
  if (activity.name == "aten::zero_" || activity.name.starts_with("aten::fill_")) {
    return {ActivityType::GPU_MEMSET, "Memset"};
  }
  return {ActivityType::CONCURRENT_KERNEL, activity.name};
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    start_recording();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    activities_ = stop_recording();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t begin, int64_t end) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(begin, end, "spyre");
    buffer_->gpuOpCount = static_cast<int>(activities_.size());
    std::set<std::pair<int64_t, int64_t>> tracks;
    for (const Activity& activity : activities_) {
      tracks.emplace(activity.device, activity.queue);
      const auto* asking = linked(static_cast<int32_t>(activity.correlation));
      add_call(activity, asking)->log(logger);
      add_work(activity, asking)->log(logger);
    }
    name_tracks(logger, tracks, begin);
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }
  void pushCorrelationId(uint64_t id) override { push_correlation(id); }
  void popCorrelationId() override { pop_correlation(); }

 private:
  // The host's part: an arrow leads from it to the card's.
  libkineto::GenericTraceActivity* add_call(const Activity& activity,
                                            const libkineto::ITraceActivity* asking) {
    const char* const name =
        activity.kind == Activity::Kind::Kernel ? "spyreLaunchKernel" : "spyreMemcpyAsync";
    auto* made = add(ActivityType::PRIVATEUSE1_RUNTIME, name, asking);
    made->startTime = activity.asked;
    made->endTime = activity.launched;
    made->device = libkineto::processId();
    made->resource = activity.thread;
    made->threadId = activity.thread;
    made->flow.start = 1;
    return made;
  }

  libkineto::GenericTraceActivity* add_work(const Activity& activity,
                                            const libkineto::ITraceActivity* asking) {
    const Shown as = shown(activity);
    auto* made = add(as.type, as.name, asking);
    made->startTime = activity.start;
    made->endTime = activity.start + activity.duration;
    made->device = activity.device;
    made->resource = activity.queue;
    last_ = (last_ + 1) & 0x7FFFFFFF;  // the next pair has another number
    made->addMetadata("device", static_cast<int>(activity.device));
    made->addMetadata("stream", activity.queue);
    made->addMetadata("modelled ns", activity.duration);
    made->addMetadata("bytes read", activity.bytes_read);
    made->addMetadata("bytes written", activity.bytes_written);
    if (activity.kind == Activity::Kind::Kernel) {
      made->addMetadata("cores", activity.cores);
      made->addMetadata("LX bytes", activity.lx_bytes);
    }
    return made;
  }

  libkineto::GenericTraceActivity* add(ActivityType type, const std::string& name,
                                       const libkineto::ITraceActivity* asking) {
    auto& made = buffer_->activities.emplace_back(
        std::make_unique<libkineto::GenericTraceActivity>(buffer_->span, type, name));
    made->id = last_;
    made->linked = asking;
    made->flow.id = static_cast<uint32_t>(last_);
    made->flow.type = libkineto::kLinkAsyncCpuGpu;
    made->addMetadata("correlation", last_);
    return made.get();
  }

  static void name_tracks(libkineto::ActivityLogger& logger,
                          const std::set<std::pair<int64_t, int64_t>>& tracks, int64_t time) {
    int64_t last = -1;
    for (const auto& [device, queue] : tracks) {
      if (device != last) {
        const std::string name = "spyre:" + std::to_string(device);
        logger.handleDeviceInfo(
            {device, device + libkineto::kExceedMaxPid, name, "SPYRE " + std::to_string(device)},
            time);
        last = device;
      }
      logger.handleResourceInfo(
          {queue, queue, device, "stream " + std::to_string(queue) + " (modelled time)"}, time);
    }
  }

  std::vector<Activity> activities_;
  int32_t last_ = 1;  // of the pairs of a call and its work
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    return types.contains(ActivityType::CONCURRENT_KERNEL) ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "spyre";
  const std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                         ActivityType::GPU_MEMSET,
                                         ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace
}  // namespace spyre
