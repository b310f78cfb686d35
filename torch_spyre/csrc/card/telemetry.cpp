#include "telemetry.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace spyre {
namespace {

constexpr std::string_view kPrefix = "torch-spyre.";
constexpr std::array<char, 8> kMagic{'S', 'P', 'Y', 'R', 'E', 'S', 'M', 'I'};
constexpr uint32_t kVersion = 1;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// In ticks since the host started; nothing if there is no such process, or only its zombie.
std::optional<int64_t> start_time(int64_t pid) {
  const std::string stat = content_of("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');  // the name may hold spaces and brackets itself
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  constexpr int kFieldsBetween = 18;  // "state" is the third field, "starttime" the 22nd
  char state = 0;
  fields >> state;
  std::string skipped;
  for (int i = 0; i < kFieldsBetween; ++i) fields >> skipped;
  int64_t ticks = 0;
  if (!(fields >> ticks) || state == 'Z' || state == 'X') return std::nullopt;
  return ticks;
}

// Processes of another namespace may have the numbers of ours.
uint64_t pid_namespace() {
  struct stat info{};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

std::string file_name(int64_t pid, int64_t ticks) {
  return std::string(kPrefix) + std::to_string(pid_namespace()) + "." + std::to_string(pid) + "." +
         std::to_string(ticks);
}

// Removes the files of this namespace whose process is gone; those of other users stay, as the
// sticky bit of the directory wants it.
void remove_stale(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(kPrefix)) continue;
    std::istringstream numbers(name.substr(kPrefix.size()));
    uint64_t space = 0;
    int64_t pid = 0, ticks = 0;
    char dot = 0;
    const bool is_page = (numbers >> space >> dot >> pid >> dot >> ticks) && numbers.eof();
    if (!is_page || space != pid_namespace()) continue;
    if (start_time(pid) != ticks) ::unlink(entry->path().c_str());
  }
}

}  // namespace

void CardTelemetry::publish(const Counters& counters) {
  const auto put = [](Word& word, int64_t value) { word.store(value, std::memory_order_relaxed); };
  put(launches, counters.launches);
  put(transfers, counters.transfers);
  put(bytes_to_card, counters.bytes_to_card);
  put(bytes_to_host, counters.bytes_to_host);
  put(bytes_read, counters.bytes_read);
  put(bytes_written, counters.bytes_written);
  put(pt_busy, counters.pt_busy);
  put(sfp_busy, counters.sfp_busy);
  put(memory_busy, counters.memory_busy);
  put(lx_busy, counters.lx_busy);
  put(compute_busy, counters.compute_busy);
  put(to_card_busy, counters.to_card_busy);
  put(to_host_busy, counters.to_host_busy);
}

struct TelemetryPage::Header {
  std::array<char, 8> magic{};  // written last: what stands behind it is complete
  uint32_t version = kVersion;
  uint32_t cards = kCards;
  int64_t opened = 0;               // nanoseconds since the epoch
  std::array<char, 168> command{};  // arguments end with a zero each, as in /proc/<pid>/cmdline
};

struct TelemetryPage::Layout {
  static_assert(sizeof(Header) == 192);
  Header header;
  std::array<CardTelemetry, kCards> cards;
};

std::unique_ptr<TelemetryPage> TelemetryPage::create(const std::filesystem::path& directory) {
  remove_stale(directory);
  const auto ticks = start_time(getpid());
  if (!ticks) return nullptr;
  const std::filesystem::path file = directory / file_name(getpid(), *ticks);
  ::unlink(file.c_str());  // left by this very process, if it became another program by `exec`
  const int descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) return nullptr;
  // Reserved now: on a full file system a store into the page would be a SIGBUS.
  void* page = MAP_FAILED;
  if (posix_fallocate(descriptor, 0, sizeof(Layout)) == 0) {
    page = mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  close(descriptor);
  if (page == MAP_FAILED) {
    ::unlink(file.c_str());
    return nullptr;
  }
  auto* layout = std::construct_at(static_cast<Layout*>(page));
  Header& header = layout->header;
  header.opened = std::chrono::duration_cast<std::chrono::nanoseconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count();
  const std::string command = content_of("/proc/self/cmdline");
  std::copy_n(command.begin(), std::min(command.size(), header.command.size()),
              header.command.begin());
  std::atomic_thread_fence(std::memory_order_release);
  header.magic = kMagic;
  return std::unique_ptr<TelemetryPage>(new TelemetryPage(file, layout));
}

TelemetryPage::TelemetryPage(std::filesystem::path file, Layout* layout)
    : file_(std::move(file)), pid_(getpid()), layout_(layout) {}

TelemetryPage::~TelemetryPage() {
  unlink();
  munmap(layout_, sizeof(Layout));
}

CardTelemetry& TelemetryPage::card(int index) { return layout_->cards.at(index); }

void TelemetryPage::unlink() {
  if (getpid() != pid_) return;
  ::unlink(file_.c_str());
  remove_stale(file_.parent_path());
}

}  // namespace spyre
