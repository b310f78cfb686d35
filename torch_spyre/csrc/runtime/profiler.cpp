// torch.profiler with ProfilerActivity.PrivateUse1: the card's work as device events.
#define USE_KINETO  // as the wheel is built
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/activity.h"
#include "runtime/trace_metadata.h"

namespace spyre {
namespace {

using libkineto::ActivityType;

// Some kernels do what other devices have engines for; people look for them by these names.
struct Shown {
  ActivityType type;
  std::string name;
};

Shown shown(const Activity& activity) {
  if (activity.kind == Activity::Kind::Exchange) {
    return {ActivityType::CONCURRENT_KERNEL, activity.name};
  }
  if (activity.kind != Activity::Kind::Kernel) return {ActivityType::GPU_MEMCPY, activity.name};
  if (activity.name == "spyre::copy") return {ActivityType::GPU_MEMCPY, "Memcpy DtoD"};
  if (activity.name == "aten::zero_" || activity.name.starts_with("aten::fill_")) {
    return {ActivityType::GPU_MEMSET, "Memset"};
  }
  return {ActivityType::CONCURRENT_KERNEL, activity.name};
}

// A trace calls the devices 0 to 15 GPUs, whatever they call themselves, and what has the number of
// a process belongs to that process. These numbers are neither.
int64_t track_of(int64_t device) { return libkineto::kExceedMaxPid + device; }

// Something on a card's track. To PyTorch its device is the card's index. Kineto calls `log` when
// it writes a trace to a file: there it is the track's.
class OnTrack final : public libkineto::GenericTraceActivity {
 public:
  using libkineto::GenericTraceActivity::GenericTraceActivity;
  void log(libkineto::ActivityLogger& logger) const override {
    libkineto::GenericTraceActivity shown(*this);
    shown.device = static_cast<int32_t>(track_of(device));
    logger.handleGenericActivity(shown);
  }
};

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    start_recording();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    recording_ = stop_recording();
    calls_ = labelled_calls(recording_.activities);
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
    buffer_->gpuOpCount = static_cast<int>(recording_.activities.size());
    std::set<std::pair<int64_t, int64_t>> tracks;
    add_ranges(logger, linked);
    for (const Activity& activity : recording_.activities) {
      tracks.emplace(activity.device, activity.queue);
      const auto* asking = linked(static_cast<int32_t>(activity.correlation));
      logger.handleActivity(*add_call(activity, asking));
      logger.handleActivity(*add_work(activity, asking));
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
  void pushUserCorrelationId(uint64_t id) override { push_range(id); }
  void popUserCorrelationId() override { pop_range(); }
  std::string getDeviceProperties() override { return device_json(recording_.activities); }
  std::unordered_map<std::string, std::string> getMetadata() override {
    return {{"spyre", calls_json(calls_)}};
  }

 private:
  // Ranges of `record_function` around the work on the card that was asked for in them.
  void add_ranges(libkineto::ActivityLogger& logger,
                  const libkineto::getLinkedActivityCallback& linked) {
    for (const auto& [where, range] : recording_.ranges) {
      const auto& [device, queue, id] = where;
      const auto* annotation = linked(static_cast<int32_t>(id));
      if (annotation == nullptr) continue;  // it began before the profiler did
      // Not linked to the range of the host: PyTorch would add its time to that of the work.
      auto* made = add_on_track(ActivityType::GPU_USER_ANNOTATION, annotation->name(), nullptr);
      made->id = static_cast<int32_t>(id);
      made->startTime = range.start;
      made->endTime = range.end;
      made->device = device;
      made->resource = queue;
      logger.handleActivity(*made);
    }
  }

  // The host's part: an arrow leads from it to the card's.
  libkineto::GenericTraceActivity* add_call(const Activity& activity,
                                            const libkineto::ITraceActivity* asking) {
    const char* const name = activity.kind == Activity::Kind::Kernel     ? "spyreLaunchKernel"
                             : activity.kind == Activity::Kind::Exchange ? "spyreExchange"
                                                                         : "spyreMemcpyAsync";
    auto* made = keep(std::make_unique<libkineto::GenericTraceActivity>(
        buffer_->span, ActivityType::PRIVATEUSE1_RUNTIME, name));
    made->linked = asking;
    connect(*made);
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
    auto* made = add_on_track(as.type, as.name, asking);
    connect(*made);
    made->startTime = activity.start;
    made->endTime = activity.start + activity.duration;
    made->device = activity.device;
    made->resource = activity.queue;
    last_ = (last_ + 1) & 0x7FFFFFFF;  // the next pair has another number
    made->addMetadata("device", static_cast<int>(activity.device));
    made->addMetadata("stream", activity.queue);
    made->addMetadata("modelled ns", activity.duration);
    if (activity.kind == Activity::Kind::Exchange) {
      made->addMetadata("bytes out", activity.bytes_read);
      made->addMetadata("bytes in", activity.bytes_written);
      made->addMetadataQuoted("ranks", activity.peers);
      return made;
    }
    made->addMetadata("bytes read", activity.bytes_read);
    made->addMetadata("bytes written", activity.bytes_written);
    if (activity.figures) add_figures(*made, activity);
    return made;
  }

  void add_figures(libkineto::GenericTraceActivity& made, const Activity& activity) const {
    const ProgramFigures& figures = *activity.figures;
    const StepFigures all = sum_of(figures.steps);
    made.addMetadata("cores", figures.cores);
    made.addMetadata("LX bytes", figures.lx_bytes);
    made.addMetadata("MACs", all.macs);
    made.addMetadata("PT ns", all.pt);
    made.addMetadata("SFP ns", all.sfp);
    made.addMetadata("LPDDR5 ns", all.memory);
    made.addMetadata("LX ns", all.lx);
    made.addMetadata("ring ns", all.ring);
    if (!activity.labels) return;
    made.addMetadata("kernel", calls_.number.at(activity.labels.get()));
    if (const std::string layer = common_layer(*activity.labels); !layer.empty()) {
      made.addMetadataQuoted("layer", escaped(layer));
    }
  }

  libkineto::GenericTraceActivity* add_on_track(ActivityType type, const std::string& name,
                                                const libkineto::ITraceActivity* asking) {
    auto* made = keep(std::make_unique<OnTrack>(buffer_->span, type, name));
    made->linked = asking;
    return made;
  }

  libkineto::GenericTraceActivity* keep(std::unique_ptr<libkineto::GenericTraceActivity> made) {
    return buffer_->activities.emplace_back(std::move(made)).get();
  }

  // A call and its work have the same number.
  void connect(libkineto::GenericTraceActivity& made) const {
    made.id = last_;
    made.flow.id = static_cast<uint32_t>(last_);
    made.flow.type = libkineto::kLinkAsyncCpuGpu;
    made.addMetadata("correlation", last_);
  }

  static void name_tracks(libkineto::ActivityLogger& logger,
                          const std::set<std::pair<int64_t, int64_t>>& tracks, int64_t time) {
    int64_t last = -1;
    for (const auto& [device, queue] : tracks) {
      if (device != last) {
        const std::string name = "spyre:" + std::to_string(device);
        logger.handleDeviceInfo({track_of(device), track_of(device), name, "modelled time"}, time);
        last = device;
      }
      const std::string name = queue == 0 ? "default stream" : "stream " + std::to_string(queue);
      logger.handleResourceInfo({queue, queue, track_of(device), name}, time);
    }
  }

  Recording recording_;
  LabelledCalls calls_;
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
  const std::set<ActivityType> types_ = {
      ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
      ActivityType::GPU_USER_ANNOTATION, ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace
}  // namespace spyre
