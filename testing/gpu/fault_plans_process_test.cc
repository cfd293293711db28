// Every fault plan that can happen on a GPU, with ranks as processes that share it.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/socket_exchange.h"
#include "testing/faults/rows.h"
#include "testing/faults/script.h"
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

class FaultPlansInProcesses : public ::testing::TestWithParam<FaultPlan> {};

TEST_P(FaultPlansInProcesses, GiveWhatTheTableSays) {
  if (!GpuIsThere()) GTEST_SKIP() << "no GPU";
  const FaultPlan& plan = GetParam();
  const Fault fault = DrawFault(plan, FaultSeed());
  const std::string name = UniqueName("plan");
  const auto outcomes = RunRankProcesses(kFaultRanks, absl::Seconds(120), [&](int rank) {
    int members = 0;
    const auto make =
        [&](const comm::GroupOptions& options) -> absl::StatusOr<std::unique_ptr<FaultMember>> {
      auto exchange = comm::MakeSocketExchange(absl::StrCat(name, "-", members++), rank,
                                               kFaultRanks, absl::Seconds(60));
      if (!exchange.ok()) return exchange.status();
      return MakeGpuFaultMember(options, std::move(*exchange), true);
    };
    return RunFaultScript(plan, fault, rank, "plan", kPatience, make);
  });
  bool passed = true;
  for (int rank = 0; rank < kFaultRanks; ++rank) {
    const bool died = plan.deviation == Deviation::kDies && rank == fault.rank;
    const bool right =
        died ? outcomes[rank].kind == RankOutcome::Kind::kExited : outcomes[rank].status.ok();
    EXPECT_TRUE(right) << "rank " << rank << " (rank " << fault.rank << " deviates in launch "
                       << fault.launch << "): " << outcomes[rank].status;
    passed = passed && right;
  }
  WriteFaultRow(plan, FaultWorld::kGpuProcesses, passed);
}

INSTANTIATE_TEST_SUITE_P(Plans, FaultPlansInProcesses,
                         ::testing::ValuesIn(FaultPlansOf(FaultWorld::kGpuProcesses)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stoker::testing
