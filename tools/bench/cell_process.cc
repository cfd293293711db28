#include "tools/bench/cell_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace stoker::bench {
namespace {

constexpr absl::Duration kCellTimeout = absl::Seconds(60);
constexpr int kExitStartAgain = 3;
// What is remembered of a cell beside the names of contenders.
constexpr char kDone[] = "done";
constexpr char kWrong[] = "failed";
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

bool CellRun::Knows(const std::string& what) const {
  return std::find(known_.begin(), known_.end(), absl::StrCat(cell_, ": ", what)) != known_.end();
}

void CellRun::Remember(const std::string& what) {
  known_.push_back(absl::StrCat(cell_, ": ", what));
  const std::string line = absl::StrCat(known_.back(), "\n");
  // A pipe takes these few bytes whole, long before anyone reads.
  if (write(pipe_, line.data(), line.size()) < 0) std::perror("pipe");
}

void CellRun::ReportFailure(const std::string& name, const absl::Status& status) {
  absl::PrintF("%-34s %s\n", name, status.ToString());
  Remember(name);
}

void CellRun::StartAgain() const {
  std::fflush(nullptr);
  _exit(kExitStartAgain);
}

absl::Status CellRun::RunAll(const std::vector<std::string>& cells,
                             const std::function<absl::Status(size_t, CellRun&)>& run_cell) {
  std::vector<std::string> wrong;
  for (size_t i = 0; i < cells.size(); ++i) {
    cell_ = cells[i];
    if (Knows(kWrong)) wrong.push_back(cell_);
    if (Knows(kWrong) || Knows(kDone)) continue;
    const absl::Status status = run_cell(i, *this);
    if (status.ok()) {
      Remember(kDone);
      continue;
    }
    absl::FPrintF(stderr, "%s: %s\n", cell_, status.ToString());
    Remember(kWrong);
    StartAgain();  // the rest in a process that nothing went wrong in
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(absl::StrJoin(wrong, "; "), " failed"));
}

absl::Status RunInChild(const std::vector<std::string>& cells,
                        const std::function<absl::Status(size_t, CellRun&)>& run_cell) {
  const std::string what = absl::StrJoin(cells, "; ");
  const absl::Duration timeout = kCellTimeout * static_cast<double>(cells.size());
  std::vector<std::string> known;
  for (;;) {
    int ends[2];
    if (pipe(ends) != 0) return ErrnoStatus(errno, "pipe");
    UniqueFd reader(ends[0]), writer(ends[1]);
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child < 0) return ErrnoStatus(errno, "fork");
    if (child == 0) {
      CellRun run(known, writer.get());
      const absl::Status status = run.RunAll(cells, run_cell);
      if (!status.ok()) absl::FPrintF(stderr, "%s\n", status.ToString());
      std::fflush(nullptr);
      _exit(status.ok() ? 0 : 1);
    }
    writer = UniqueFd();
    const int exit = Wait(child, absl::Now() + timeout);
    if (exit == 0) return absl::OkStatus();
    if (exit == kDied) return absl::InternalError(absl::StrCat(what, " died of a signal"));
    if (exit == kKilledLate) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, " did not end within ", absl::FormatDuration(timeout)));
    }
    const size_t before = known.size();
    for (absl::string_view line : absl::StrSplit(ReadAll(reader.get()), '\n', absl::SkipEmpty())) {
      known.emplace_back(line);
    }
    if (exit != kExitStartAgain || known.size() == before) {
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
