#include "tools/stoker/health.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/shared_memory.h"
#include "comm/health.h"

ABSL_FLAG(int, pid, 0, "only groups with a rank in this process");

namespace stoker::command {
namespace {

std::vector<std::string> PageNames() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "stoker_") && absl::EndsWith(name, "_health")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool HasProcess(const comm::HealthPage& page, int pid) {
  const int world = std::clamp(page.world, 0, comm::kWorldMax);
  return std::any_of(page.ranks, page.ranks + world,
                     [pid](const comm::RankHealth& rank) { return rank.pid == pid; });
}

}  // namespace

int RunHealth() {
  const int pid = absl::GetFlag(FLAGS_pid);
  int shown = 0;
  bool failed = false;
  for (const std::string& name : PageNames()) {
    const auto memory = SharedMemory::OpenForReading(name, sizeof(comm::HealthPage));
    if (!memory.ok()) {
      absl::FPrintF(stderr, "%s\n", memory.status().ToString());
      continue;
    }
    const auto& page = *static_cast<const comm::HealthPage*>(memory->data());
    if (pid != 0 && !HasProcess(page, pid)) continue;
    const auto earlier = std::make_unique<comm::HealthReading>();
    const auto now = std::make_unique<comm::HealthReading>();
    comm::ReadPage(page, earlier.get());
    *now = *earlier;
    // Ranks that wait say for whom about once a millisecond, on a busy machine less often.
    for (int looks = 0; looks < 20 && comm::WantsALaterReading(*earlier, *now); ++looks) {
      absl::SleepFor(absl::Milliseconds(20));
      comm::ReadPage(page, now.get());
    }
    absl::PrintF("%s\n%s", name, comm::Describe(*earlier, *now));
    ++shown;
    failed = failed || !comm::StatusOf(page).ok();
  }
  if (shown > 0) return failed ? 1 : 0;
  absl::FPrintF(
      stderr,
      "No health page of this user%s in /dev/shm. Is the group alive, and in this IPC namespace?\n",
      pid != 0 ? absl::StrFormat(" with process %d", pid) : "");
  return 2;
}

}  // namespace stoker::command
