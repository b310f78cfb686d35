#include "host_memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace spyre {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr int64_t kMiB = int64_t{1} << 20;

// The number in a file that holds one; nothing for "max", a missing file, or anything else.
std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The value after `key` in a file of "key value" lines.
std::optional<int64_t> read_field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    int64_t value = 0;
    if (fields >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // in memory.stat: file pages that the kernel drops before it kills
};
constexpr CgroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr CgroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file"};

int64_t cgroup_room(const std::string& directory, const CgroupFiles& files) {
  const auto limit = read_number(directory + "/" + files.limit);
  const auto usage = read_number(directory + "/" + files.usage);
  if (!limit || !usage) return kUnlimited;
  const int64_t reclaimable = read_field(directory + "/memory.stat", files.reclaimable).value_or(0);
  return std::max<int64_t>(0, *limit - *usage + reclaimable);
}

// The group itself and all groups around it: each of them may be the one that is full.
int64_t least_room(const std::string& mount, std::string group, const CgroupFiles& files) {
  int64_t room = cgroup_room(mount, files);
  while (group.size() > 1) {
    room = std::min(room, cgroup_room(mount + group, files));
    group.resize(group.rfind('/'));
  }
  return room;
}

int64_t room_in_cgroups() {
  int64_t room = kUnlimited;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // "hierarchy:controllers:/group"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      room = std::min(room, least_room("/sys/fs/cgroup", group, kVersion2));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      room = std::min(room, least_room("/sys/fs/cgroup/memory", group, kVersion1));
    }
  }
  return room;
}

}  // namespace

int64_t available_host_memory() {
  const auto kib = read_field("/proc/meminfo", "MemAvailable:");
  return std::min(kib ? *kib * 1024 : kUnlimited, room_in_cgroups());
}

int64_t host_memory_reserve() {
  static const int64_t reserve = [] {
    const int64_t total = read_field("/proc/meminfo", "MemTotal:").value_or(0) * 1024;
    return std::clamp<int64_t>(total / 32, 256 * kMiB, 2048 * kMiB);
  }();
  return reserve;
}

std::string format_bytes(int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits{"KiB", "MiB", "GiB", "TiB"};
  std::array<char, 40> text{};
  if (bytes < 1024) {
    std::snprintf(text.data(), text.size(), "%lld bytes", static_cast<long long>(bytes));
    return text.data();
  }
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::snprintf(text.data(), text.size(), "%.2f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace spyre
