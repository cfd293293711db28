// Ranks in containers that do not share /dev/shm, or that have a small one, are told so, all of
// them.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <filesystem>
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

// What a container without a shared IPC namespace has. `options`: of the mount, such as its size.
absl::Status EnterOwnSharedMemory(const char* options = nullptr) {
  if (unshare(CLONE_NEWNS) == 0 &&
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      mount("tmpfs", "/dev/shm", "tmpfs", 0, options) == 0) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(kRefused);
}

absl::Status CreateMember(const std::string& name, int rank) {
  GroupOptions options;
  options.name = name;
  options.setup_timeout = absl::Seconds(5);
  STOKER_ASSIGN_OR_RETURN(auto exchange,
                          MakeSocketExchange(name, rank, kWorld, options.setup_timeout));
  return CpuCommunicator::Create(options, *exchange).status();
}

TEST(Namespaces, RanksWithoutASharedOneAreToldAndNamed) {
  const std::string name = stoker::testing::UniqueName("apart");
  const auto outcomes =
      stoker::testing::RunRankProcesses(kWorld, absl::Seconds(30), [&](int rank) -> absl::Status {
        if (rank == 1) STOKER_RETURN_IF_ERROR(EnterOwnSharedMemory());
        return CreateMember(name, rank);
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

struct SmallOne {
  const char* options;
  const char* told;  // to rank 1
};

class SmallSharedMemory : public ::testing::TestWithParam<SmallOne> {};

TEST_P(SmallSharedMemory, IsToldToAllRanksAndNothingIsLeftInIt) {
  const std::string name = stoker::testing::UniqueName("small");
  const auto outcomes =
      stoker::testing::RunRankProcesses(1, absl::Seconds(60), [&](int) -> absl::Status {
        STOKER_RETURN_IF_ERROR(EnterOwnSharedMemory(GetParam().options));
        const auto ranks = stoker::testing::RunRankProcesses(
            kWorld, absl::Seconds(30), [&](int rank) { return CreateMember(name, rank); });
        for (const auto& rank : ranks) {
          for (const char* words : {"needs ", "and /dev/shm has ", "lower the capacity"}) {
            if (!absl::StrContains(rank.status.message(), words)) return rank.status;
          }
        }
        if (!absl::StrContains(ranks[1].status.message(), GetParam().told)) return ranks[1].status;
        return std::filesystem::is_empty("/dev/shm") ? absl::OkStatus()
                                                     : absl::DataLossError("a segment is left");
      });
  if (absl::StrContains(outcomes[0].status.message(), kRefused)) {
    GTEST_SKIP() << kRefused << ": needs CAP_SYS_ADMIN";
  }
  EXPECT_TRUE(outcomes[0].status.ok()) << outcomes[0].status;
}

INSTANTIATE_TEST_SUITE_P(Sizes, SmallSharedMemory,
                         ::testing::Values(SmallOne{"size=1m", "_rank1 needs"},
                                           SmallOne{"size=4k", "rank 0, creating the health page"}),
                         [](const auto& info) { return std::string(info.param.options + 5); });

}  // namespace
}  // namespace stoker::comm
