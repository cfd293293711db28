#include "testing/rank_processes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"

namespace stoker::testing {
namespace {

using Kind = RankOutcome::Kind;

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
    while (rank == 1) usleep(1000);
    return absl::OkStatus();
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(outcomes[0].kind, Kind::kReturned);
  EXPECT_EQ(outcomes[1].kind, Kind::kHung);
}

TEST(RankProcesses, ARankThatIgnoresSignalsIsKilledToo) {
  const auto outcomes = RunRankProcesses(1, absl::Milliseconds(300), [](int) {
    std::signal(SIGTERM, SIG_IGN);
    for (;;) usleep(1000);
    return absl::OkStatus();
  });
  EXPECT_EQ(outcomes[0].kind, Kind::kHung);
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

TEST(RankProcesses, ARankThatFloodsItsOutputIsNotBlocked) {
  const auto outcomes = RunRankProcesses(1, absl::Seconds(20), [](int) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) return absl::InternalError("freopen");
    for (int i = 0; i < 200000; ++i) std::printf("flood %d\n", i);
    return absl::OkStatus();
  });
  EXPECT_EQ(outcomes[0].kind, Kind::kReturned);
}

TEST(RankProcesses, WhatARankForkedDiesWithIt) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const auto outcomes = RunRankProcesses(1, absl::Seconds(20), [&](int) {
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      for (;;) usleep(1000);
    }
    return write(pipe_ends[1], &grandchild, sizeof(grandchild)) == sizeof(grandchild)
               ? absl::OkStatus()
               : absl::InternalError("write");
  });
  EXPECT_EQ(outcomes[0].kind, Kind::kReturned);
  pid_t grandchild = 0;
  ASSERT_EQ(read(pipe_ends[0], &grandchild, sizeof(grandchild)),
            static_cast<ssize_t>(sizeof(grandchild)));
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  bool gone = false;
  while (!gone && absl::Now() < deadline) {
    // Dead, or a zombie that only init can reap.
    std::FILE* stat = std::fopen(("/proc/" + std::to_string(grandchild) + "/stat").c_str(), "r");
    char state = 'X';
    if (stat != nullptr) {
      if (std::fscanf(stat, "%*d %*s %c", &state) != 1) state = 'X';
      std::fclose(stat);
    }
    gone = state == 'X' || state == 'Z';
    usleep(1000);
  }
  EXPECT_TRUE(gone);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace stoker::testing
