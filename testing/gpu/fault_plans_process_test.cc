// Every fault plan that can happen on a GPU, with ranks as processes that share it.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/socket_exchange.h"
#include "testing/faults/rows.h"
#include "testing/faults/script.h"
#include "testing/gpu/fault_hooks.h"
#include "testing/gpu/fault_member.h"
#include "testing/rank_processes.h"
#include "testing/stream_world.h"
#include "testing/unique_name.h"

namespace stoker::testing {
namespace {

// Time-sliced, a handshake takes milliseconds.
constexpr FaultPatience kPatience{.deadline = absl::Milliseconds(600),
                                  .precise = absl::Milliseconds(1500),
                                  .slack = absl::Milliseconds(800),
                                  .launches_after = 20};

// Looks in a child, so that this process stays free of CUDA.
bool GpuIsThere() {
  static const bool there = AllReturnedOk(RunRankProcesses(1, absl::Seconds(60), [](int) {
                              return HasGpu() ? absl::OkStatus() : absl::UnavailableError("no GPU");
                            })).ok();
  return there;
}

absl::Status RunPlan(const FaultPlan& plan, const std::string& name, int rank) {
  int members = 0;
  const auto make =
      [&](const comm::GroupOptions& options) -> absl::StatusOr<std::unique_ptr<FaultMember>> {
    auto exchange = comm::MakeSocketExchange(absl::StrCat(name, "-", members++), rank, kFaultRanks,
                                             absl::Seconds(40));
    if (!exchange.ok()) return exchange.status();
    return MakeGpuFaultMember(options, std::move(*exchange), true, TestBuildFaultKernels());
  };
  return RunFaultScript(plan, DrawFault(plan, FaultSeed()), rank, "plan", kPatience, make);
}

bool Dies(const FaultPlan& plan) { return plan.deviation == Deviation::kDies; }

// One set of processes for all plans, as each needs seconds to start.
TEST(FaultPlansInProcesses, GiveWhatTheTableSays) {
  if (!GpuIsThere()) GTEST_SKIP() << "no GPU";
  const std::string name = UniqueName("plan");
  const auto outcomes = RunRankProcesses(kFaultRanks, absl::Seconds(200), [&](int rank) {
    std::string failures;
    for (const FaultPlan& plan : FaultPlansOf(FaultWorld::kGpuProcesses)) {
      if (Dies(plan)) continue;
      const absl::Status status = RunPlan(plan, absl::StrCat(name, "-", plan.name), rank);
      if (!status.ok()) absl::StrAppend(&failures, plan.name, ": ", status.message(), "\n");
    }
    return failures.empty() ? absl::OkStatus() : absl::InternalError(failures);
  });
  for (const FaultPlan& plan : FaultPlansOf(FaultWorld::kGpuProcesses)) {
    if (Dies(plan)) continue;
    bool passed = true;
    for (const RankOutcome& outcome : outcomes) {
      passed = passed && outcome.kind == RankOutcome::Kind::kReturned &&
               !absl::StrContains(outcome.status.message(), absl::StrCat(plan.name, ": "));
    }
    WriteFaultRow(plan, FaultWorld::kGpuProcesses, passed);
  }
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

TEST(FaultPlansInProcesses, ARankThatDiesIsNamed) {
  if (!GpuIsThere()) GTEST_SKIP() << "no GPU";
  for (const FaultPlan& plan : FaultPlansOf(FaultWorld::kGpuProcesses)) {
    if (!Dies(plan)) continue;
    const int dead = DrawFault(plan, FaultSeed()).rank;
    const std::string name = UniqueName("plan");
    const auto outcomes = RunRankProcesses(kFaultRanks, absl::Seconds(90),
                                           [&](int rank) { return RunPlan(plan, name, rank); });
    bool passed = true;
    for (int rank = 0; rank < kFaultRanks; ++rank) {
      const bool right = rank == dead ? outcomes[rank].kind == RankOutcome::Kind::kExited
                                      : outcomes[rank].status.ok();
      EXPECT_TRUE(right) << "rank " << rank << ": " << outcomes[rank].status;
      passed = passed && right;
    }
    WriteFaultRow(plan, FaultWorld::kGpuProcesses, passed);
  }
}

}  // namespace
}  // namespace stoker::testing
