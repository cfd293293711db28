#include "offload/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "offload/trace/generator.h"
#include "offload/trace/replay.h"

namespace stoker::offload {
namespace {

using ::testing::HasSubstr;

TEST(TraceFile, IsReadAndWritten) {
  const auto trace = ParseTrace(
      "# n_layer=4 n_expert=9\nturn,phase,step,layer,slot,expert,weight,residency\n"
      "0,0,7,0,0,3,0.75,1\n0,0,7,0,1,8,0.25,1\r\n0,1,8,1,0,2,1,1\n",
      "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->layers, 4);
  EXPECT_EQ(trace->experts, 9);
  ASSERT_EQ(trace->groups.size(), 2u);
  EXPECT_EQ(trace->groups[0].routes[1].expert, 8);
  EXPECT_EQ(trace->groups[0].routes[1].weight, 0.25f);
  EXPECT_EQ(DecodeOnly(*trace).groups.size(), 1u);
  const std::string path = ::testing::TempDir() + "/trace.csv";
  ASSERT_TRUE(WriteTrace(*trace, path).ok());
  const auto again = ReadTrace(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->layers, 4);
  EXPECT_EQ(again->groups[0].routes[0].weight, 0.75f);
  EXPECT_EQ(again->groups[1].step, 8);
}

TEST(TraceFile, BadLinesAreNamed) {
  for (const auto& [text, message] : std::map<std::string, std::string>{
           {"", "no routes"},
           {"0,1,0,0,0,3\n", "t:1"},
           {"0,1,0,0,0,3,1\n0,1,0,0,2,3,1\n", "t:2: slot 2 does not follow"},
           {"0,1,0,0,1,3,1\n", "t:1: slot 1 does not follow"},
           {"0,1,0,0,0,-1,1\n", "t:1"},
           {"0,1,0,99999,0,1,1\n", "t:1"},
           {"0,1,0,0,32,1,1\n", "t:1"},
           {"0,2,0,0,0,1,1\n", "t:1"},
           {"# n_expert=1000000\n", "more than"}}) {
    EXPECT_THAT(std::string(ParseTrace(text, "t").status().message()), HasSubstr(message)) << text;
  }
}

Trace OneLayer(const std::vector<std::vector<int>>& groups) {
  Trace trace{1, 16, {}};
  for (size_t g = 0; g < groups.size(); ++g) {
    trace.groups.push_back({true, 0, static_cast<int64_t>(g), 0, {}});
    for (const int expert : groups[g]) trace.groups.back().routes.push_back({expert, 1.0f});
  }
  return trace;
}

int64_t Hits(const Trace& trace, ReplayPolicy policy, int slots, bool global = false) {
  return Replay(trace, {policy, slots, global}).hits;
}

TEST(Replay, EveryPolicyByHand) {
  // Two slots.
  const Trace trace = OneLayer({{0}, {0}, {1}, {2}, {0}, {1}});
  EXPECT_EQ(Hits(trace, ReplayPolicy::kBelady, 2), 2) << "2 replaces 1";
  EXPECT_EQ(Hits(trace, ReplayPolicy::kLru, 2), 1) << "2 replaces 0";
  EXPECT_EQ(Hits(trace, ReplayPolicy::kLfu, 2), 2) << "2 replaces 1";
  EXPECT_EQ(Hits(trace, ReplayPolicy::kDecayedLfu, 2), 2);
  EXPECT_EQ(Hits(trace, ReplayPolicy::kFifo, 2), 1);
  for (const ReplayPolicy policy : kAllReplayPolicies) {
    EXPECT_EQ(Hits(trace, policy, 3), 3) << PolicyName(policy) << ": everything fits";
    EXPECT_LE(Hits(trace, policy, 2), Hits(trace, ReplayPolicy::kBelady, 2)) << PolicyName(policy);
  }
}

TEST(Replay, AGroupIsProtectedAndAMissWithoutAVictimIsNotInserted) {
  const Trace trace = OneLayer({{0, 1, 2}, {0, 1}, {2}, {2, 2}});
  EXPECT_EQ(Hits(trace, ReplayPolicy::kLru, 2), 2 + 0 + 1) << "0 and 1 stay, then 2 evicts one";
  EXPECT_EQ(Replay(trace, {ReplayPolicy::kLru, 2}).uses, 7) << "a duplicate counts once";
}

TEST(Replay, AGlobalLruBelowTheWorkingSetNeverHits) {
  Trace trace{4, 16, {}};
  for (int step = 0; step < 20; ++step) {
    for (int layer = 0; layer < 4; ++layer) {
      trace.groups.push_back({true, 0, step, layer, {{0, 0.5f}, {1, 0.5f}}});
    }
  }
  EXPECT_EQ(Hits(trace, ReplayPolicy::kLru, 1, /*global=*/true), 0);
  EXPECT_GT(Hits(trace, ReplayPolicy::kBelady, 1, true), 0);
  EXPECT_EQ(Hits(trace, ReplayPolicy::kLru, 2, true), 19 * 8);
}

TEST(Generator, IsReproducibleAndValid) {
  const GeneratorOptions options{.layers = 3, .experts = 16, .top_k = 4, .tokens = 50, .seed = 7};
  const Trace trace = GenerateTrace(options);
  const Trace again = GenerateTrace(options);
  ASSERT_EQ(trace.groups.size(), 150u);
  for (size_t g = 0; g < trace.groups.size(); ++g) {
    std::set<int> distinct;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(trace.groups[g].routes[i].expert, again.groups[g].routes[i].expert);
      distinct.insert(trace.groups[g].routes[i].expert);
    }
    EXPECT_EQ(distinct.size(), 4u);
    EXPECT_LT(*distinct.rbegin(), 16);
  }
}

// The statistics of a recorded Qwen3-30B-A3B run (48 layers, 128 experts, k 6, 128 tokens).
TEST(Generator, HasTheStatisticsOfARecordedModel) {
  const Trace trace = GenerateTrace({});
  double distinct = 0;
  double overlap = 0;
  double entropy = 0;
  double top8 = 0;
  double first_weight = 0;
  for (int layer = 0; layer < trace.layers; ++layer) {
    std::map<int, int> uses;
    std::set<int> before;
    for (const RouteGroup& group : trace.groups) {
      if (group.layer != layer) continue;
      std::set<int> now;
      for (const Route& route : group.routes) {
        ++uses[route.expert];
        now.insert(route.expert);
        overlap += static_cast<double>(before.count(route.expert));
      }
      before = now;
      first_weight = group.routes[0].weight;
    }
    distinct += static_cast<double>(uses.size());
    std::vector<int> counts;
    for (const auto& [expert, count] : uses) {
      entropy -= count / 768.0 * std::log2(count / 768.0);
      counts.push_back(count);
    }
    std::sort(counts.rbegin(), counts.rend());
    for (int i = 0; i < 8; ++i) top8 += counts[i] / 768.0;
  }
  // Recorded: 63.7, .380, 5.20 and .445.
  EXPECT_NEAR(distinct / trace.layers, 63.7, 4);
  EXPECT_NEAR(overlap / (trace.layers * 127 * 6), 0.380, 0.03);
  EXPECT_NEAR(entropy / trace.layers, 5.20, 0.15);
  EXPECT_NEAR(top8 / trace.layers, 0.445, 0.03);
  EXPECT_NEAR(first_weight, 0.265, 0.002);
}

}  // namespace
}  // namespace stoker::offload
