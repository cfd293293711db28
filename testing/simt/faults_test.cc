// Every fault plan that can happen on the simulated machine, each in many schedules: the named
// error on every rank, in time, and no finite wrong data. And a group that is reset.
#include <gtest/gtest.h>

#include "testing/faults/rows.h"
#include "testing/simt/bodies.h"
#include "testing/simt/fault_plans.h"
#include "testing/simt/scenarios.h"
#include "testing/simt/world.h"

namespace stoker::testing::simt {
namespace {

constexpr int kDraws = 4;       // of the rank and the launch
constexpr int kSchedules = 30;  // of each

void ExpectRight(const Scenario& scenario, uint64_t first, int schedules) {
  World world(scenario);
  for (int i = 0; i < schedules; ++i) {
    const uint64_t seed = first + static_cast<uint64_t>(i);
    const Outcome outcome = world.Run(ShippedBody(scenario), seed);
    ASSERT_EQ(outcome.verdict, Verdict::kRight)
        << VerdictName(outcome.verdict) << ": " << outcome.what << "\nrank " << scenario.fault.rank
        << " deviates in launch " << scenario.fault.launch << ", seed " << seed;
  }
}

class FaultPlansInTheSimulator : public ::testing::TestWithParam<FaultPlan> {};

TEST_P(FaultPlansInTheSimulator, GiveWhatTheTableSays) {
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    const uint64_t seed = FaultSeed() * kDraws + draw;
    const stoker::testing::Fault fault = DrawFault(GetParam(), seed);
    ExpectRight(ScenarioOf(GetParam(), fault.rank, fault.launch), seed * 1'000'003u, kSchedules);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Simulator, FaultPlansInTheSimulator,
                         ::testing::ValuesIn(FaultPlansOf(FaultWorld::kSimulator)),
                         [](const auto& info) { return info.param.name; });

TEST(SimulatedReset, BringsTheGroupBackWheneverItComes) {
  ExpectRight(ResetBetweenLaunches(), FaultSeed() * 1'000'003u, 300);
}

TEST(SimulatedReset, BringsAGroupBackThatHasFailed) {
  Scenario s = ResetBetweenLaunches();
  s.fault = {.rank = 1, .launch = 1, .tokens = 1};
  ExpectRight(s, FaultSeed() * 1'000'003u, 300);
}

}  // namespace
}  // namespace stoker::testing::simt
