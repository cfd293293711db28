// Every mutant must be killed, by what was predicted of it, under seeds on which the unchanged
// kernel passes. Prints how many schedules that took.
#include "testing/simt/mutants/mutants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

namespace stoker::testing::simt {
namespace {

constexpr int kTrials = 20;
constexpr int kSchedulesMax = 5000;  // a trial

uint64_t BaseSeed() {
  const char* text = std::getenv("STOKER_SEED");
  return (text == nullptr ? 1 : std::strtoull(text, nullptr, 10)) * 1'000'003u;
}

std::vector<Mutant> All() {
  std::vector<Mutant> all;
  for (const auto& some : {MailboxMutants(), EpochMutants(), FailureMutants(), ClusterMutants()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

TEST(Mutants, AreAllKilled) {
  int killed = 0, count = 0;
  const char* only = std::getenv("STOKER_MUTANT");
  for (const Mutant& mutant : All()) {
    if (only != nullptr && mutant.name != only) continue;
    ++count;
    World world(mutant.scenario);
    std::vector<int> schedules;
    std::string first;
    std::set<std::string> others;
    for (int trial = 0; trial < kTrials; ++trial) {
      const uint64_t seed = BaseSeed() + static_cast<uint64_t>(trial) * kSchedulesMax;
      int run = 0;
      for (; run < kSchedulesMax; ++run) {
        const Outcome outcome = world.Run(mutant.body, seed + static_cast<uint64_t>(run));
        if (outcome.verdict == Verdict::kRight) continue;
        if (std::find(mutant.predicted.begin(), mutant.predicted.end(), outcome.verdict) ==
            mutant.predicted.end()) {
          others.insert(std::string(VerdictName(outcome.verdict)) + ": " +
                        outcome.what.substr(0, outcome.what.find('\n')));
          continue;
        }
        const Outcome control = world.Run(mutant.control, seed + static_cast<uint64_t>(run));
        if (control.verdict != Verdict::kRight) {
          others.insert("the unchanged kernel: " + control.what.substr(0, 200));
          continue;
        }
        if (first.empty()) first = std::string(VerdictName(outcome.verdict));
        break;
      }
      if (run == kSchedulesMax) break;
      schedules.push_back(run + 1);
    }
    if (schedules.size() == kTrials) {
      ++killed;
      std::nth_element(schedules.begin(), schedules.begin() + kTrials / 2, schedules.end());
      std::printf("%-24s killed by %-14s median %d schedules\n", mutant.name.c_str(), first.c_str(),
                  schedules[kTrials / 2]);
    } else {
      std::string text;
      for (const std::string& other : others) {
        if (text.size() < 1000) text += "\n  not predicted: " + other;
      }
      ADD_FAILURE() << mutant.name << " (" << mutant.what << ") survived all schedules of trial "
                    << schedules.size() + 1 << text;
    }
    std::fflush(stdout);
  }
  std::printf("killed %d/%d\n", killed, count);
  EXPECT_EQ(killed, count);
  EXPECT_TRUE(only != nullptr || count >= 20);
}

}  // namespace
}  // namespace stoker::testing::simt
