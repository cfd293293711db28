#include "testing/rank_processes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "base/bounded_wait.h"

namespace stoker::testing {
namespace {

using Kind = RankOutcome::Kind;

// Gone, or a zombie that only its parent can reap.
bool Ended(pid_t pid) {
  std::FILE* stat = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (stat == nullptr) return true;
  char state = 'X';
  const bool read = std::fscanf(stat, "%*d %*s %c", &state) == 1;
  std::fclose(stat);
  return !read || state == 'X' || state == 'Z';
}

bool EndsWithin(pid_t pid, absl::Duration timeout) {
  return WaitUntil([pid] { return Ended(pid); }, Deadline(Clock::Monotonic(), timeout), "x").ok();
}

// A place that all ranks and the test can write process numbers to.
class SharedPids {
 public:
  SharedPids() {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pids_ = page == MAP_FAILED ? nullptr : static_cast<std::atomic<pid_t>*>(page);
  }
  ~SharedPids() {
    if (pids_ != nullptr) munmap(pids_, 4096);
  }
  std::atomic<pid_t>& operator[](int i) const { return pids_[i]; }

 private:
  std::atomic<pid_t>* pids_;
};

[[noreturn]] void LoopForEver() {
  for (;;) usleep(1000);
}

TEST(RankProcesses, EveryRankReturnsItsStatus) {
  const auto outcomes = RunRankProcesses(3, absl::Seconds(20), [](int rank) {
    return rank == 1 ? absl::NotFoundError("rank one says no") : absl::OkStatus();
  });
  EXPECT_TRUE(outcomes[0].status.ok());
  EXPECT_EQ(outcomes[1].status, absl::NotFoundError("rank one says no"));
  const absl::Status all = AllReturnedOk(outcomes);
  EXPECT_NE(all.message().find("rank 1: NOT_FOUND: rank one says no"), std::string::npos) << all;
}

TEST(RankProcesses, ARankThatLoopsIsKilledAndNamed) {
  const absl::Time start = absl::Now();
  const auto outcomes = RunRankProcesses(2, absl::Milliseconds(300), [](int rank) {
    while (rank == 1) usleep(1000);  // NOLINT(bugprone-infinite-loop): that is the test
    return absl::OkStatus();
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(outcomes[0].kind, Kind::kReturned);
  EXPECT_EQ(outcomes[1].kind, Kind::kHung);
}

TEST(RankProcesses, ARankThatIgnoresSignalsIsKilledToo) {
  const absl::Time start = absl::Now();
  const auto outcomes = RunRankProcesses(1, absl::Milliseconds(300), [](int) {
    std::signal(SIGTERM, SIG_IGN);
    for (;;) usleep(1000);
    return absl::OkStatus();
  });
  EXPECT_EQ(outcomes[0].kind, Kind::kHung);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(RankProcesses, ACrashAndAnEarlyExitAreToldApart) {
  const auto outcomes = RunRankProcesses(3, absl::Seconds(20), [](int rank) {
    if (rank == 0) std::raise(SIGKILL);
    if (rank == 1) _exit(7);
    return absl::OkStatus();
  });
  EXPECT_EQ(outcomes[0].kind, Kind::kSignalled);
  EXPECT_EQ(outcomes[1].kind, Kind::kExited);
  EXPECT_EQ(outcomes[2].kind, Kind::kReturned);
}

TEST(RankProcesses, AStoppedRankIsKilledToo) {
  const absl::Time start = absl::Now();
  const auto outcomes = RunRankProcesses(2, absl::Milliseconds(300), [](int rank) {
    if (rank == 1) std::raise(SIGSTOP);
    return absl::OkStatus();
  });
  EXPECT_EQ(outcomes[0].kind, Kind::kReturned);
  EXPECT_EQ(outcomes[1].kind, Kind::kHung);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(RankProcesses, OutputIsCollectedByRankAndShownForThoseThatFail) {
  const auto outcomes = RunRankProcesses(
      2, absl::Seconds(20),
      [](int rank) {
        std::printf("out of %d\n", rank);
        std::fflush(stdout);
        std::fprintf(stderr, "err of %d\n", rank);
        return rank == 1 ? absl::InternalError("wrong bits") : absl::OkStatus();
      },
      RankOutput::kCollected);
  for (int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].output,
              "out of " + std::to_string(rank) + "\nerr of " + std::to_string(rank) + "\n");
  }
  const absl::Status all = AllReturnedOk(outcomes);
  EXPECT_NE(all.message().find("err of 1"), std::string::npos) << all;
  EXPECT_EQ(all.message().find("err of 0"), std::string::npos) << all;
}

TEST(RankProcesses, ARankThatFloodsItsOutputIsNotBlockedAndTheEndIsKept) {
  const auto outcomes = RunRankProcesses(
      1, absl::Seconds(20),
      [](int) {
        for (int i = 0; i < 200000; ++i) std::printf("flood %d\n", i);
        return absl::OkStatus();
      },
      RankOutput::kCollected);
  EXPECT_EQ(outcomes[0].kind, Kind::kReturned) << outcomes[0].status;
  EXPECT_EQ(outcomes[0].output.size(), size_t{1} << 16);
  EXPECT_NE(outcomes[0].output.find("flood 199999\n"), std::string::npos);
}

TEST(RankProcesses, AFloodWithoutEndIsCutAtTheDeadline) {
  const absl::Time start = absl::Now();
  const auto outcomes = RunRankProcesses(
      1, absl::Milliseconds(300),
      [](int) {
        const std::string block(1 << 16, 'x');
        while (write(STDOUT_FILENO, block.data(), block.size()) > 0) {
        }
        return absl::OkStatus();
      },
      RankOutput::kCollected);
  EXPECT_EQ(outcomes[0].kind, Kind::kHung);
  EXPECT_EQ(outcomes[0].output, std::string(1 << 16, 'x'));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

// A grandchild that stays in the rank's group, and one that left it for a session of its own.
class Grandchildren : public ::testing::TestWithParam<bool> {};

TEST_P(Grandchildren, DieWithTheirRank) {
  const SharedPids pids;
  const absl::Time start = absl::Now();
  const auto outcomes = RunRankProcesses(
      2, absl::Seconds(20),
      [&pids](int rank) {
        const pid_t grandchild = fork();
        if (grandchild == 0) {
          if (GetParam()) setsid();
          pids[rank] = getpid();
          LoopForEver();
        }
        while (pids[rank] == 0) usleep(1000);
        return absl::OkStatus();
      },
      RankOutput::kCollected);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10)) << "it waited for the pipes to close";
  for (int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].kind, Kind::kReturned) << outcomes[rank].status;
    // Reaped, too: there is no such process.
    EXPECT_EQ(kill(pids[rank], 0), -1) << "process " << pids[rank] << " of rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Session, Grandchildren, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Own" : "OfTheRank");
});

TEST(RankProcesses, TheCallersOwnChildrenAreLeftAlone) {
  const pid_t own = fork();
  if (own == 0) LoopForEver();
  RunRankProcesses(2, absl::Seconds(20), [](int) { return absl::OkStatus(); });
  EXPECT_FALSE(Ended(own));
  kill(own, SIGKILL);
  waitpid(own, nullptr, 0);
}

TEST(RankProcesses, RanksDieWithTheirParent) {
  const SharedPids pids;
  const pid_t parent = fork();
  if (parent == 0) {
    RunRankProcesses(2, absl::Seconds(60), [&pids](int rank) -> absl::Status {
      pids[rank] = getpid();
      LoopForEver();
    });
    _exit(0);
  }
  const Deadline deadline(Clock::Monotonic(), absl::Seconds(20));
  ASSERT_TRUE(WaitUntil([&] { return pids[0] != 0 && pids[1] != 0; }, deadline, "a start").ok());
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  for (int rank : {0, 1}) EXPECT_TRUE(EndsWithin(pids[rank], absl::Seconds(10))) << rank;
}

}  // namespace
}  // namespace stoker::testing
