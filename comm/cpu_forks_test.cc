// A member forks after its group was made. Everything is refused to the child by name, nothing that
// it destroys touches the group, and the parent goes on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "comm/cpu_launches.h"
#include "comm/health_page.h"
#include "comm/socket_exchange.h"
#include "testing/rank_processes.h"
#include "testing/unique_name.h"

namespace stoker::comm {
namespace {

using stoker::testing::AllReturnedOk;
using stoker::testing::RunRankProcesses;
using stoker::testing::UniqueName;

constexpr int kWorld = 2;
constexpr int kTokens = 3;

struct Member {
  std::unique_ptr<RankExchange> exchange;
  std::unique_ptr<CpuCommunicator> communicator;
};

absl::StatusOr<Member> MakeMember(const std::string& name, int rank) {
  GroupOptions options;
  options.name = name;
  options.capacity = kTokens;
  options.hidden_max = 64;
  options.timeout = options.startup_timeout = absl::Seconds(10);
  Member member;
  STOKER_ASSIGN_OR_RETURN(member.exchange,
                          MakeSocketExchange(name, rank, kWorld, options.setup_timeout));
  STOKER_ASSIGN_OR_RETURN(member.communicator, CpuCommunicator::Create(options, *member.exchange));
  return member;
}

// What `body` says in a child of this process; the child is killed after 20 s.
absl::Status InChild(const std::function<absl::Status()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const absl::Status status = body();
    if (!status.ok()) absl::FPrintF(stderr, "the child: %s\n", status.ToString());
    _exit(status.ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? absl::OkStatus()
                     : absl::InternalError(absl::StrCat("the child ended with status ", status));
}

absl::Status Refused(const char* call, const absl::Status& status) {
  if (status.code() == absl::StatusCode::kFailedPrecondition &&
      absl::StrContains(status.message(), absl::StrCat("process ", getpid(), " was forked"))) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(call, " was not refused: ", status.ToString()));
}

absl::Status UseAndDestroy(Member member) {
  CpuCommunicator& communicator = *member.communicator;
  STOKER_RETURN_IF_ERROR(Refused("a launch", LaunchAndCheck(communicator, kTokens)));
  STOKER_RETURN_IF_ERROR(Refused("Health", communicator.Health()));
  STOKER_RETURN_IF_ERROR(Refused("Abort", communicator.Abort()));
  STOKER_RETURN_IF_ERROR(Refused("SetTimeout", communicator.SetTimeout(absl::Seconds(1))));
  STOKER_RETURN_IF_ERROR(Refused("Reset", communicator.Reset(*member.exchange, absl::Seconds(5))));
  STOKER_RETURN_IF_ERROR(Refused("Close", communicator.Close(*member.exchange, absl::Seconds(5))));
  return absl::OkStatus();  // and now the copies go
}

// Where the page is that `stoker health` reads.
absl::Status PageIsThere(const GroupPlan& plan) {
  return SharedMemory::OpenForReading(plan.SharedName("health"), sizeof(HealthPage)).status();
}

TEST(Forks, AChildIsRefusedAndTakesNothingAway) {
  const std::string name = UniqueName("forks");
  const auto outcomes = RunRankProcesses(kWorld, absl::Seconds(60), [&](int rank) -> absl::Status {
    STOKER_ASSIGN_OR_RETURN(Member member, MakeMember(name, rank));
    STOKER_RETURN_IF_ERROR(LaunchAndCheck(*member.communicator, kTokens));
    STOKER_RETURN_IF_ERROR(InChild([&] { return UseAndDestroy(std::move(member)); }));
    STOKER_RETURN_IF_ERROR(PageIsThere(member.communicator->plan()));
    STOKER_RETURN_IF_ERROR(LaunchAndCheck(*member.communicator, kTokens));
    // A reset stops launches: the peer's last one has to be over.
    STOKER_RETURN_IF_ERROR(member.exchange->Barrier("launched", absl::Seconds(5)));
    STOKER_RETURN_IF_ERROR(member.communicator->Reset(*member.exchange, absl::Seconds(10)));
    STOKER_RETURN_IF_ERROR(LaunchAndCheck(*member.communicator, kTokens));
    return member.communicator->Close(*member.exchange, absl::Seconds(10));
  });
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

TEST(Forks, AChildOfABusyMemberIsRefusedToo) {
  const std::string name = UniqueName("busy");
  const auto outcomes = RunRankProcesses(kWorld, absl::Seconds(60), [&](int rank) -> absl::Status {
    STOKER_ASSIGN_OR_RETURN(Member member, MakeMember(name, rank));
    absl::Status launched, child;
    std::thread launching([&] {
      for (int i = 0; i < 200 && launched.ok(); ++i) {
        launched = LaunchAndCheck(*member.communicator, kTokens);
      }
    });
    for (int i = 0; i < 20 && child.ok(); ++i) {
      child = InChild([&] { return UseAndDestroy(std::move(member)); });
    }
    launching.join();
    STOKER_RETURN_IF_ERROR(child);
    STOKER_RETURN_IF_ERROR(launched);
    return member.communicator->Close(*member.exchange, absl::Seconds(10));
  });
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

TEST(Forks, AChildMayMakeAGroupOfItsOwn) {
  const std::string name = UniqueName("own");
  const auto outcomes = RunRankProcesses(kWorld, absl::Seconds(60), [&](int rank) -> absl::Status {
    STOKER_ASSIGN_OR_RETURN(Member member, MakeMember(name, rank));
    STOKER_RETURN_IF_ERROR(InChild([&]() -> absl::Status {
      STOKER_ASSIGN_OR_RETURN(Member own, MakeMember(name + "-child", rank));
      STOKER_RETURN_IF_ERROR(LaunchAndCheck(*own.communicator, kTokens));
      return own.communicator->Close(*own.exchange, absl::Seconds(10));
    }));
    STOKER_RETURN_IF_ERROR(LaunchAndCheck(*member.communicator, kTokens));
    return member.communicator->Close(*member.exchange, absl::Seconds(10));
  });
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

}  // namespace
}  // namespace stoker::comm
