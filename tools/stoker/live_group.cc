// live_group MILLISECONDS: a group of three CPU ranks for the test of `stoker health`: 16 launches,
// then one for which rank 1 comes so late. Each rank prints "rank R: PID".
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/cpu_launches.h"
#include "testing/cpu_world.h"

int main(int count, char** words) {
  const int hold_ms = count < 2 ? 0 : std::atoi(words[1]);
  stoker::comm::GroupOptions options;
  options.name = stoker::testing::UniqueGroupName();
  options.capacity = 4;
  options.hidden_max = 64;
  options.timeout = options.startup_timeout = absl::Seconds(60);
  const auto outcomes = stoker::testing::RunCpuProcesses(
      3, options, absl::Seconds(60),
      [&](stoker::comm::CpuCommunicator& communicator, stoker::comm::RankExchange&) {
        const int rank = communicator.plan().rank;
        for (int launch = 0; launch < 16; ++launch) {
          STOKER_RETURN_IF_ERROR(stoker::comm::LaunchAndCheck(communicator, 2));
        }
        std::printf("rank %d: %d\n", rank, getpid());
        std::fflush(stdout);
        if (rank == 1) absl::SleepFor(absl::Milliseconds(hold_ms));
        return stoker::comm::LaunchAndCheck(communicator, 2);
      });
  const absl::Status status = stoker::testing::AllReturnedOk(outcomes);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
