// Every fault plan that can happen on CPU ranks.
#include <gtest/gtest.h>

#include "testing/faults/cpu_runner.h"
#include "testing/faults/rows.h"

namespace stoker::testing {
namespace {

class FaultPlansOnCpuRanks : public ::testing::TestWithParam<FaultPlan> {};

TEST_P(FaultPlansOnCpuRanks, GiveWhatTheTableSays) {
  const absl::Status status = RunOnCpuRanks(GetParam(), FaultSeed());
  EXPECT_TRUE(status.ok()) << status << "\nagain: STOKER_SEED=" << FaultSeed();
}

INSTANTIATE_TEST_SUITE_P(Plans, FaultPlansOnCpuRanks,
                         ::testing::ValuesIn(FaultPlansOf(FaultWorld::kCpuRanks)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stoker::testing
