#include "testing/rank_processes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bounded_wait.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "testing/stray_processes.h"

namespace stoker::testing {
namespace {

constexpr size_t kReportBytesMax = 8192;

constexpr size_t kOutputBytesMax = 1 << 16;
constexpr size_t kOutputShownMax = 4096;
constexpr absl::Duration kKillWait = absl::Seconds(10);

struct Child {
  pid_t pid = -1;
  UniqueFd report;
  UniqueFd output;
  std::string report_text;
  std::string output_text;
  bool reaped = false;
};

[[noreturn]] void RunChild(int rank, pid_t parent, int report, int output,
                           const std::function<absl::Status(int)>& rank_main) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(3);  // the parent died before the line above
  if (output >= 0 && (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)) _exit(5);
  const absl::Status status = rank_main(rank);
  const std::string text = absl::StrCat(static_cast<int>(status.code()), "\n", status.message())
                               .substr(0, kReportBytesMax);
  const ssize_t written = write(report, text.data(), text.size());
  std::fflush(nullptr);
  _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 4);
}

// What has come, without waiting for more: a process that the rank forked may hold the other end.
// Of a long text the end is kept, up to twice `bytes_max` of it; at most 1 MiB is read at a time,
// so that a rank that never stops writing does not keep its parent here.
void Drain(int fd, size_t bytes_max, std::string& text) {
  char buffer[1 << 14];
  ssize_t got = 0;
  for (int i = 0; i < 64 && (got = read(fd, buffer, sizeof(buffer))) > 0; ++i) {
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > 2 * bytes_max) text.erase(0, text.size() - bytes_max);
  }
}

void Drain(Child& child) {
  Drain(child.report.get(), kReportBytesMax, child.report_text);
  if (child.output.get() >= 0) Drain(child.output.get(), kOutputBytesMax, child.output_text);
}

// A pipe whose reading end does not block.
absl::Status MakePipe(UniqueFd& read_end, UniqueFd& write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2");
  read_end = UniqueFd(ends[0]);
  write_end = UniqueFd(ends[1]);
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "fcntl");
  return absl::OkStatus();
}

absl::Status StartChild(int rank, RankOutput output,
                        const std::function<absl::Status(int)>& rank_main, Child& child) {
  UniqueFd report;
  UniqueFd written;
  STOKER_RETURN_IF_ERROR(MakePipe(child.report, report));
  if (output == RankOutput::kCollected) {
    STOKER_RETURN_IF_ERROR(MakePipe(child.output, written));
  }
  const pid_t parent = getpid();
  child.pid = fork();
  if (child.pid == 0) RunChild(rank, parent, report.get(), written.get(), rank_main);
  if (child.pid < 0) return ErrnoStatus(errno, "fork");
  return absl::OkStatus();
}

RankOutcome Judge(const Child& child, int wait_status) {
  RankOutcome outcome;
  const size_t line = child.report_text.find('\n');
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0 && line != std::string::npos) {
    outcome.kind = RankOutcome::Kind::kReturned;
    outcome.status =
        absl::Status(static_cast<absl::StatusCode>(std::atoi(child.report_text.c_str())),
                     child.report_text.substr(line + 1));
  } else if (WIFSIGNALED(wait_status)) {
    outcome.kind = RankOutcome::Kind::kSignalled;
    outcome.status = absl::InternalError(absl::StrCat("killed by signal ", WTERMSIG(wait_status)));
  } else {
    outcome.kind = RankOutcome::Kind::kExited;
    outcome.status = absl::InternalError(
        absl::StrCat("exited with status ", WEXITSTATUS(wait_status), " before it returned"));
  }
  return outcome;
}

// Whether the rank has ended; then `outcome` says how.
bool Reap(Child& child, RankOutcome& outcome) {
  if (child.pid < 0 || child.reaped) return true;
  Drain(child);  // a rank must not block on a full pipe
  int wait_status = 0;
  if (waitpid(child.pid, &wait_status, WNOHANG) != child.pid) return false;
  child.reaped = true;
  Drain(child);
  outcome = Judge(child, wait_status);
  return true;
}

void KillRest(std::vector<Child>& children, std::vector<RankOutcome>& outcomes,
              absl::Duration timeout) {
  // All of them before any is waited for: a rank must not outlive its peers to report their death.
  for (const Child& child : children) {
    if (child.pid > 0 && !child.reaped) kill(child.pid, SIGKILL);
  }
  for (size_t rank = 0; rank < children.size(); ++rank) {
    Child& child = children[rank];
    if (child.pid < 0 || child.reaped) continue;
    RankOutcome killed;
    const Deadline end(Clock::Monotonic(), kKillWait);
    const bool ended = WaitUntil([&] { return Reap(child, killed); }, end, "its end").ok();
    outcomes[rank].kind = RankOutcome::Kind::kHung;
    outcomes[rank].status = absl::DeadlineExceededError(
        absl::StrCat("did not return within ", absl::FormatDuration(timeout),
                     ended ? "" : ", and SIGKILL did not end it"));
  }
}

}  // namespace

std::vector<RankOutcome> RunRankProcesses(int world, absl::Duration timeout,
                                          const std::function<absl::Status(int rank)>& rank_main,
                                          RankOutput output) {
  std::vector<RankOutcome> outcomes(world);
  std::vector<Child> children(world);
  std::fflush(nullptr);  // or every rank would write what is buffered once more
  const StrayProcesses strays;
  const Deadline deadline(Clock::Monotonic(), timeout);
  for (int rank = 0; rank < world; ++rank) {
    const absl::Status started = StartChild(rank, output, rank_main, children[rank]);
    if (!started.ok()) outcomes[rank] = {RankOutcome::Kind::kExited, started, ""};
  }
  const auto all_reaped = [&] {
    bool all = true;
    for (int rank = 0; rank < world; ++rank) all &= Reap(children[rank], outcomes[rank]);
    return all;
  };
  if (!WaitUntil(all_reaped, deadline, "the end of all ranks").ok()) {
    KillRest(children, outcomes, timeout);
  }
  if (!strays.KillAndReap(Deadline(Clock::Monotonic(), kKillWait))) {
    std::fprintf(stderr, "a process that a rank left behind could not be killed\n");
  }
  for (int rank = 0; rank < world; ++rank) {
    std::string& text = children[rank].output_text;
    outcomes[rank].output = text.substr(text.size() - std::min(text.size(), kOutputBytesMax));
  }
  return outcomes;
}

absl::Status AllReturnedOk(const std::vector<RankOutcome>& outcomes) {
  std::vector<std::string> failures;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].kind != RankOutcome::Kind::kReturned || !outcomes[rank].status.ok()) {
      failures.push_back(absl::StrCat("rank ", rank, ": ", outcomes[rank].status.ToString()));
      const std::string& output = outcomes[rank].output;
      if (!output.empty()) {
        failures.push_back(
            absl::StrCat("output of rank ", rank, ":\n",
                         output.substr(output.size() - std::min(output.size(), kOutputShownMax))));
      }
    }
  }
  if (failures.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrJoin(failures, "\n"));
}

}  // namespace stoker::testing
