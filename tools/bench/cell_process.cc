#include "tools/bench/cell_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace stoker::bench {
namespace {

constexpr absl::Duration kCellTimeout = absl::Seconds(60);
constexpr int kExitStartAgain = 3;
// Beside the exit statuses, which are positive.
constexpr int kDied = -1;
constexpr int kKilledLate = -2;

// The child's exit status, kDied or kKilledLate.
int Wait(pid_t child, absl::Time deadline) {
  int state = 0;
  while (waitpid(child, &state, WNOHANG) == 0) {
    if (absl::Now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &state, 0);
      return kKilledLate;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : kDied;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[512];
  for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
  return text;
}

}  // namespace

bool CellRun::Failed(const std::string& name) const {
  return std::find(failed_.begin(), failed_.end(), name) != failed_.end();
}

void CellRun::ReportFailure(const std::string& name, const absl::Status& status) {
  absl::PrintF("%-34s %s\n", name, status.ToString());
  const std::string line = absl::StrCat(name, "\n");
  // A pipe takes these few bytes whole, long before anyone reads.
  if (write(pipe_, line.data(), line.size()) < 0) std::perror("pipe");
  failed_.push_back(name);
}

void CellRun::StartAgain() const {
  std::fflush(nullptr);
  _exit(kExitStartAgain);
}

absl::Status RunInChild(const std::string& what,
                        const std::function<absl::Status(CellRun&)>& cell) {
  std::vector<std::string> failed;
  for (;;) {
    int ends[2];
    if (pipe(ends) != 0) return ErrnoStatus(errno, "pipe");
    UniqueFd reader(ends[0]), writer(ends[1]);
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child < 0) return ErrnoStatus(errno, "fork");
    if (child == 0) {
      CellRun run(failed, writer.get());
      const absl::Status status = cell(run);
      if (!status.ok()) absl::FPrintF(stderr, "%s\n", status.ToString());
      std::fflush(nullptr);
      _exit(status.ok() ? 0 : 1);
    }
    writer = UniqueFd();
    const int exit = Wait(child, absl::Now() + kCellTimeout);
    if (exit == 0) return absl::OkStatus();
    if (exit == kDied) return absl::InternalError(absl::StrCat(what, " died of a signal"));
    if (exit == kKilledLate) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, " did not end within ", absl::FormatDuration(kCellTimeout)));
    }
    const size_t known = failed.size();
    for (absl::string_view name : absl::StrSplit(ReadAll(reader.get()), '\n', absl::SkipEmpty())) {
      failed.emplace_back(name);
    }
    if (exit != kExitStartAgain || failed.size() == known) {
      return absl::InternalError(absl::StrCat(what, " failed"));
    }
  }
}

bool AskInChild(const std::function<bool()>& question) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(question() ? 0 : 1);
  return child > 0 && Wait(child, absl::Now() + kCellTimeout) == 0;
}

}  // namespace stoker::bench
