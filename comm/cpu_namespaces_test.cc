// Ranks in containers that do not share /dev/shm are told so by name, all of them.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "base/status.h"
#include "comm/cpu_communicator.h"
#include "comm/socket_exchange.h"
#include "testing/rank_processes.h"
#include "testing/unique_name.h"

namespace stoker::comm {
namespace {

constexpr int kWorld = 2;
constexpr char kRefused[] = "cannot mount a /dev/shm of its own";

// What a container without a shared IPC namespace has.
absl::Status EnterOwnSharedMemory() {
  if (unshare(CLONE_NEWNS) == 0 &&
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) == 0) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(kRefused);
}

TEST(Namespaces, RanksWithoutASharedOneAreToldAndNamed) {
  const std::string name = stoker::testing::UniqueName("apart");
  const auto outcomes =
      stoker::testing::RunRankProcesses(kWorld, absl::Seconds(30), [&](int rank) -> absl::Status {
        if (rank == 1) STOKER_RETURN_IF_ERROR(EnterOwnSharedMemory());
        GroupOptions options;
        options.name = name;
        options.setup_timeout = absl::Seconds(5);
        STOKER_ASSIGN_OR_RETURN(auto exchange,
                                MakeSocketExchange(name, rank, kWorld, options.setup_timeout));
        return CpuCommunicator::Create(options, *exchange).status();
      });
  if (absl::StrContains(outcomes[1].status.message(), kRefused)) {
    GTEST_SKIP() << kRefused << ": needs CAP_SYS_ADMIN";
  }
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(
        absl::StrContains(outcome.status.message(), "do all ranks share one IPC namespace?"))
        << outcome.status;
  }
  EXPECT_TRUE(absl::StrContains(outcomes[0].status.message(), "rank 1")) << outcomes[0].status;
}

}  // namespace
}  // namespace stoker::comm
