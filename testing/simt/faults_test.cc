// Faults in the simulated world: the named error on every rank, in time, and no finite wrong data.
#include <gtest/gtest.h>

#include <cstdlib>

#include "testing/simt/bodies.h"
#include "testing/simt/scenarios.h"
#include "testing/simt/world.h"

namespace stoker::testing::simt {
namespace {

class Fault : public ::testing::TestWithParam<Scenario> {};

TEST_P(Fault, IsReportedAndNothingElseHappens) {
  World world(GetParam());
  const char* text = std::getenv("STOKER_SEED");
  const uint64_t first = (text == nullptr ? 1 : std::strtoull(text, nullptr, 10)) * 1'000'003u;
  for (uint64_t seed = first; seed < first + 200; ++seed) {
    const Outcome outcome = world.Run(ShippedBody(GetParam()), seed);
    ASSERT_EQ(outcome.verdict, Verdict::kRight)
        << VerdictName(outcome.verdict) << ": " << outcome.what << "\nseed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Simulator, Fault, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stoker::testing::simt
