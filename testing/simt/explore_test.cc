// Explores schedules of the shipped bodies: each must give the right bits on every rank, and end.
//
// The seeds come from STOKER_SEED, which the test runner sets to the commit's. A failing schedule
// prints one command that runs it again alone.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "testing/simt/bodies.h"
#include "testing/simt/world.h"

namespace stoker::testing::simt {
namespace {

struct Exploration {
  Scenario scenario;
  int distinct;  // schedules to find
};

// At least 3 ranks, 2 tokens, 2 CTAs a cluster, 2 warps a CTA and 4 launches.
bool IsLarge(const Scenario& s) {
  int with_two_tokens = 0;
  for (int tokens : s.tokens) with_two_tokens += tokens >= 2;
  return s.world >= 3 && with_two_tokens > 0 && s.cluster_size >= 2 && s.row_warps + 1 >= 2 &&
         s.tokens.size() >= 4;
}

std::vector<Exploration> Explorations() {
  std::vector<Exploration> all;
  const auto add = [&all](const char* name, int distinct) -> Scenario& {
    all.push_back({Scenario(), distinct});
    all.back().scenario.name = name;
    return all.back().scenario;
  };
  add("Smallest", 60000).tokens = {1, 1, 1, 1};
  {
    Scenario& s = add("NoTokensBetween", 40000);
    s.tokens = {1, 0, 1, 0, 0, 1};
    s.early_trigger = true;
  }
  {
    Scenario& s = add("ThreeRanksOfTwoClusters", 20000);
    s.world = 3;
    s.clusters = 2;
    s.packets = 3;
    s.tokens = {2, 1, 3, 2};
  }
  {
    Scenario& s = add("TwoShot", 20000);
    s.world = 3;
    s.clusters = 2;
    s.packets = 2;
    s.two_shot = true;
    s.tokens = {3, 2, 0, 4};
  }
  {
    Scenario& s = add("SentinelPayload", 10000);
    s.world = 3;
    s.packets = 2;
    s.payload = Payload::kSentinel;
    s.tokens = {2, 1, 2};
  }
  {
    Scenario& s = add("NanPayload", 5000);
    s.packets = 2;
    s.payload = Payload::kNan;
    s.tokens = {2, 1, 2};
  }
  {
    Scenario& s = add("FinalizeOfTwoWarps", 5000);
    s.source = Source::kFinalize;
    s.row_warps = 2;
    s.packets = 33;
    s.tokens = {2, 1, 2, 2};
    s.early_trigger = true;
    s.limits.resident_ctas = 2;
  }
  {
    // More experts than a chunk has rows.
    Scenario& s = add("ReductionOfTwoWarps", 500);
    s.source = Source::kReduction;
    s.row_warps = 2;
    s.packets = 33;
    s.tokens = {2, 1, 2, 2};
    s.early_trigger = true;
    s.limits.resident_ctas = 2;
  }
  {
    Scenario& s = add("ReductionInTwoShots", 1000);
    s.world = 3;
    s.clusters = 2;
    s.packets = 2;
    s.source = Source::kReduction;
    s.two_shot = true;
    s.tokens = {3, 2, 0, 4};
  }
  {
    Scenario& s = add("LargeOneShot", 15000);
    s.world = 3;
    s.cluster_size = 2;
    s.packets = 33;
    s.tokens = {2, 1, 2, 2};
    s.early_trigger = true;
    s.limits.resident_ctas = 4;
  }
  {
    Scenario& s = add("LargeOneShotOfTwoClusters", 15000);
    s.world = 3;
    s.clusters = 2;
    s.cluster_size = 2;
    s.packets = 33;
    s.tokens = {1, 2, 1, 2};
  }
  {
    Scenario& s = add("LargeTwoShot", 10000);
    s.world = 3;
    s.clusters = 2;
    s.cluster_size = 2;
    s.packets = 33;
    s.two_shot = true;
    s.tokens = {2, 3, 1, 2};
  }
  {
    Scenario& s = add("LargeFinalize", 1000);
    s.world = 4;
    s.clusters = 2;
    s.cluster_size = 2;
    s.row_warps = 2;
    s.packets = 66;
    s.source = Source::kFinalize;
    s.tokens = {3, 2, 2, 2};
  }
  return all;
}

uint64_t BaseSeed() {
  const char* text = std::getenv("STOKER_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

class Explore : public ::testing::TestWithParam<Exploration> {};

TEST_P(Explore, EveryScheduleIsRight) {
  const Exploration& exploration = GetParam();
  World world(exploration.scenario);
  const Body body = ShippedBody(exploration.scenario);
  const char* replay = std::getenv("STOKER_SIMT_REPLAY");
  const uint64_t first =
      replay != nullptr ? std::strtoull(replay, nullptr, 10) : BaseSeed() * 1'000'003u;
  const char* scale = std::getenv("STOKER_SIMT_PERCENT");
  const int distinct =
      replay != nullptr ? 1
                        : exploration.distinct * (scale != nullptr ? std::atoi(scale) : 100) / 100;
  absl::flat_hash_set<uint64_t> schedules, classes;
  int64_t operations = 0;
  int runs = 0;
  for (; static_cast<int>(schedules.size()) < distinct; ++runs) {
    ASSERT_LT(runs, 2 * distinct + 100) << "the schedules repeat themselves";
    const Outcome outcome = world.Run(body, first + static_cast<uint64_t>(runs));
    ASSERT_EQ(outcome.verdict, Verdict::kRight)
        << VerdictName(outcome.verdict) << ": " << outcome.what
        << "\nTo run this schedule alone:\n  bazel test //testing/simt:explore_test "
        << "--test_filter='*/" << exploration.scenario.name
        << "' --test_env=STOKER_SIMT_REPLAY=" << first + static_cast<uint64_t>(runs);
    schedules.insert(outcome.schedule_hash);
    classes.insert(outcome.class_hash);
    operations += outcome.operations;
  }
  std::printf(
      "%-24s %6d schedules, %6zu distinct, %6zu distinct up to the order of unrelated "
      "operations, %.0f operations each%s\n",
      exploration.scenario.name.c_str(), runs, schedules.size(), classes.size(),
      static_cast<double>(operations) / runs, IsLarge(exploration.scenario) ? ", large" : "");
}

INSTANTIATE_TEST_SUITE_P(Simulator, Explore, ::testing::ValuesIn(Explorations()),
                         [](const auto& info) { return info.param.scenario.name; });

TEST(Explorations, AreEnough) {
  int all = 0, large = 0;
  for (const Exploration& exploration : Explorations()) {
    all += exploration.distinct;
    if (IsLarge(exploration.scenario)) large += exploration.distinct;
  }
  EXPECT_GE(all, 200'000);
  EXPECT_GE(large, 40'000);
}

}  // namespace
}  // namespace stoker::testing::simt
