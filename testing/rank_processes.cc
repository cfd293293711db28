#include "testing/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace stoker::testing {
namespace {

constexpr size_t kReportBytesMax = 8192;

struct Child {
  pid_t pid = -1;
  UniqueFd report;
  std::string text;
  bool reaped = false;
};

[[noreturn]] void RunChild(int rank, pid_t parent, int report,
                           const std::function<absl::Status(int)>& rank_main) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(3);  // the parent died before the line above
  setpgid(0, 0);
  const absl::Status status = rank_main(rank);
  const std::string text = absl::StrCat(static_cast<int>(status.code()), "\n", status.message())
                               .substr(0, kReportBytesMax);
  const ssize_t written = write(report, text.data(), text.size());
  std::fflush(nullptr);
  _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 4);
}

void ReadReport(Child& child) {
  char buffer[kReportBytesMax];
  ssize_t got = 0;
  while (child.text.size() < kReportBytesMax &&
         (got = read(child.report.get(), buffer, sizeof(buffer))) > 0) {
    child.text.append(buffer, static_cast<size_t>(got));
  }
}

RankOutcome Judge(Child& child, int wait_status) {
  ReadReport(child);
  RankOutcome outcome;
  const size_t line = child.text.find('\n');
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0 && line != std::string::npos) {
    outcome.kind = RankOutcome::Kind::kReturned;
    outcome.status = absl::Status(static_cast<absl::StatusCode>(std::atoi(child.text.c_str())),
                                  child.text.substr(line + 1));
  } else if (WIFSIGNALED(wait_status)) {
    outcome.kind = RankOutcome::Kind::kSignalled;
    outcome.status = absl::InternalError(absl::StrCat("killed by signal ", WTERMSIG(wait_status)));
  } else {
    outcome.kind = RankOutcome::Kind::kExited;
    outcome.status =
        absl::InternalError(absl::StrCat("exited with status ", WEXITSTATUS(wait_status)));
  }
  return outcome;
}

}  // namespace

std::vector<RankOutcome> RunRankProcesses(int world, absl::Duration timeout,
                                          const std::function<absl::Status(int rank)>& rank_main) {
  std::vector<RankOutcome> outcomes(world);
  std::vector<Child> children(world);
  const pid_t parent = getpid();
  std::fflush(nullptr);
  for (int rank = 0; rank < world; ++rank) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
      outcomes[rank].status = ErrnoStatus(errno, "pipe2");
      continue;
    }
    UniqueFd write_end(ends[1]);
    children[rank].report = UniqueFd(ends[0]);
    children[rank].pid = fork();
    if (children[rank].pid == 0) RunChild(rank, parent, write_end.get(), rank_main);
    if (children[rank].pid < 0) outcomes[rank].status = ErrnoStatus(errno, "fork");
  }
  const absl::Time deadline = absl::Now() + timeout;
  bool killed = false;
  for (;;) {
    bool running = false;
    for (int rank = 0; rank < world; ++rank) {
      Child& child = children[rank];
      if (child.pid < 0 || child.reaped) continue;
      ReadReport(child);  // a rank must not block on a full pipe
      int wait_status = 0;
      if (waitpid(child.pid, &wait_status, WNOHANG) == child.pid) {
        child.reaped = true;
        kill(-child.pid, SIGKILL);  // whatever it left in its group
        outcomes[rank] = Judge(child, wait_status);
        if (killed && outcomes[rank].kind == RankOutcome::Kind::kSignalled) {
          outcomes[rank].kind = RankOutcome::Kind::kHung;
          outcomes[rank].status = absl::DeadlineExceededError(
              absl::StrCat("did not return within ", absl::FormatDuration(timeout)));
        }
      } else {
        running = true;
      }
    }
    if (!running) return outcomes;
    if (!killed && absl::Now() > deadline) {
      killed = true;
      for (const Child& child : children) {
        if (child.pid > 0 && !child.reaped) {
          kill(-child.pid, SIGKILL);
          kill(child.pid, SIGKILL);  // before it had made its group
        }
      }
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
}

absl::Status AllReturnedOk(const std::vector<RankOutcome>& outcomes) {
  std::vector<std::string> failures;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].kind != RankOutcome::Kind::kReturned || !outcomes[rank].status.ok()) {
      failures.push_back(absl::StrCat("rank ", rank, ": ", outcomes[rank].status.ToString()));
    }
  }
  if (failures.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrJoin(failures, "\n"));
}

}  // namespace stoker::testing
