#include "offload/machine_limits.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace stoker::offload {
namespace {

// Nothing when the file is missing or holds "max" or a negative number.
std::optional<int64_t> ReadNumber(const std::string& path, int word = 0) {
  std::ifstream file(path);
  std::string text;
  for (int i = 0; i <= word; ++i) {
    if (!(file >> text)) return std::nullopt;
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 0) return std::nullopt;
  return value;
}

// The folder of a group and of all groups around it: each may have a limit of its own.
std::vector<std::string> Folders(const std::string& mount, std::string group) {
  std::vector<std::string> folders;
  while (true) {
    folders.push_back(mount + group);
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos || group.empty()) return folders;
    group.resize(slash);
  }
}

void Quota(std::optional<int64_t> quota, std::optional<int64_t> period, MachineLimits* limits) {
  if (!quota || !period || *period <= 0 || *quota == 0) return;
  const int64_t cpus = (*quota + *period - 1) / *period;
  limits->cpus = static_cast<int>(std::min<int64_t>(limits->cpus, std::max<int64_t>(cpus, 1)));
}

void Memory(std::optional<int64_t> bytes, MachineLimits* limits) {
  if (bytes) limits->memory_bytes = std::min(limits->memory_bytes, static_cast<uint64_t>(*bytes));
}

// A line is "hierarchy:controllers:path"; version 2 has no controllers.
void ReadGroup(const std::string& root, const std::string& line, MachineLimits* limits) {
  const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
  if (fields.size() != 3) return;
  const std::string mount = root + "/sys/fs/cgroup";
  if (fields[1].empty()) {
    for (const std::string& folder : Folders(mount, fields[2])) {
      Quota(ReadNumber(folder + "/cpu.max"), ReadNumber(folder + "/cpu.max", 1), limits);
      Memory(ReadNumber(folder + "/memory.max"), limits);
    }
    return;
  }
  for (const absl::string_view controller : absl::StrSplit(fields[1], ',')) {
    if (controller == "cpu") {
      for (const std::string& folder : Folders(mount + "/cpu", fields[2])) {
        Quota(ReadNumber(folder + "/cpu.cfs_quota_us"), ReadNumber(folder + "/cpu.cfs_period_us"),
              limits);
      }
    } else if (controller == "memory") {
      for (const std::string& folder : Folders(mount + "/memory", fields[2])) {
        Memory(ReadNumber(folder + "/memory.limit_in_bytes"), limits);
      }
    }
  }
}

}  // namespace

MachineLimits ReadMachineLimits(const std::string& root, int affinity) {
  MachineLimits limits;
  limits.cpus = std::max(affinity, 1);
  // "MemTotal:  123 kB"
  if (const auto kib = ReadNumber(root + "/proc/meminfo", 1)) Memory(*kib * 1024, &limits);
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) ReadGroup(root, line, &limits);
  return limits;
}

MachineLimits ReadMachineLimits() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affinity = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return ReadMachineLimits("", affinity);
}

}  // namespace stoker::offload
