// A process that gets SIGTERM, or drops its member of the group, while its peers wait for it.
#include "comm/termination.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/cpu_launches.h"
#include "testing/cpu_world.h"

namespace stoker::comm {
namespace {

using stoker::testing::RankOutcome;

GroupOptions Options() {
  GroupOptions options;
  options.name = stoker::testing::UniqueGroupName();
  options.capacity = 4;
  options.hidden_max = 64;
  options.timeout = options.startup_timeout = absl::Seconds(60);
  return options;
}

// A launch whose peer, rank 1, leaves instead of launching.
absl::Status ReleasedWithinASecond(CpuCommunicator& communicator) {
  const absl::Time start = absl::Now();
  const absl::Status status = LaunchAndCheck(communicator, 2);
  const absl::Duration waited = absl::Now() - start;
  // Rank 1 leaves after 300 ms.
  if (waited > absl::Milliseconds(1300)) return absl::InternalError(absl::FormatDuration(waited));
  const bool named = status.code() == absl::StatusCode::kAborted &&
                     absl::StrContains(status.message(), "host of rank 1");
  return named ? absl::OkStatus() : absl::InternalError(status.ToString());
}

TEST(Termination, ReleasesAllRanksWithinASecondAndEndsTheProcess) {
  const auto outcomes = stoker::testing::RunCpuProcesses(
      3, Options(), absl::Seconds(60),
      [](CpuCommunicator& communicator, RankExchange&) -> absl::Status {
        STOKER_RETURN_IF_ERROR(LaunchAndCheck(communicator, 1));
        if (communicator.plan().rank != 1) {
          STOKER_RETURN_IF_ERROR(ReleasedWithinASecond(communicator));
          _exit(0);  // nobody comes to Close
        }
        absl::SleepFor(absl::Milliseconds(300));
        kill(getpid(), SIGTERM);
        absl::SleepFor(absl::Seconds(30));
        return absl::InternalError("SIGTERM did not end the process");
      });
  EXPECT_EQ(outcomes[1].kind, RankOutcome::Kind::kSignalled) << outcomes[1].status;
  EXPECT_TRUE(absl::StrContains(outcomes[1].status.message(), "signal 15")) << outcomes[1].status;
  for (int rank : {0, 2}) {
    EXPECT_EQ(outcomes[rank].kind, RankOutcome::Kind::kExited) << outcomes[rank].status;
    EXPECT_TRUE(absl::StrContains(outcomes[rank].status.message(), "status 0 "))
        << outcomes[rank].status;
  }
}

TEST(Termination, AMemberThatIsDestroyedReleasesAllRanksWithinASecond) {
  const auto statuses = stoker::testing::RunCpuThreads(
      3, Options(), [](CpuCommunicator& communicator, RankExchange&) -> absl::Status {
        if (communicator.plan().rank == 1) {
          absl::SleepFor(absl::Milliseconds(300));
          return absl::CancelledError("leaves without closing");
        }
        const absl::Status released = ReleasedWithinASecond(communicator);
        return released.ok() ? absl::CancelledError("released") : released;
      });
  for (int rank : {0, 2}) EXPECT_EQ(statuses[rank].message(), "released") << statuses[rank];
}

volatile std::sig_atomic_t handled = 0;

TEST(Termination, TheHandlerBeforeGetsTheSignalAfterwards) {
  struct sigaction theirs {
  }, before{};
  theirs.sa_handler = [](int) { handled = handled + 1; };
  ASSERT_EQ(sigaction(SIGTERM, &theirs, &before), 0);
  std::atomic<int> stopped = 0, hung = 0;
  {
    StopAtTermination stop([&] { ++stopped; });
    StopAtTermination other([&] { ++stopped; });
    kill(getpid(), SIGTERM);
    const absl::Time end = absl::Now() + absl::Seconds(10);
    while (handled == 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(handled, 1);
    EXPECT_EQ(stopped, 2);
  }
  struct sigaction now {};
  sigaction(SIGTERM, nullptr, &now);
  EXPECT_EQ(now.sa_handler, theirs.sa_handler);
  sigaction(SIGTERM, &before, nullptr);
}

}  // namespace
}  // namespace stoker::comm
