// Enumerates schedules instead of drawing them: all that differ from running every thread in turn,
// with stores performed at once, by at most so many delays (delay-bounded scheduling: Emmi, Qadeer
// and Rakamaric, POPL 2011). A delay puts a thread behind all others at a memory operation, or
// holds its stores, or the last word of a packet, back until nothing else can happen.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "testing/long_run.h"
#include "testing/simt/bodies.h"
#include "testing/simt/scenarios.h"
#include "testing/simt/world.h"

namespace stoker::testing::simt {
namespace {

class Enumeration {
 public:
  Enumeration(const Scenario& scenario, Body body) : world_(scenario), body_(body) {}

  // All schedules with at most `most` delays more than `delays_` has. False after the first that
  // is not right.
  bool Run(int most) {
    Policy policy;
    policy.delays = &delays_;
    const Outcome outcome = world_.Run(body_, 1, policy);
    ++runs_;
    schedules_.insert(outcome.schedule_hash);
    if (outcome.verdict != Verdict::kRight) {
      what_ = std::string(VerdictName(outcome.verdict)) + (": " + outcome.what) + "\ndelays at";
      for (int delay : delays_) what_ += " " + std::to_string(delay);
      return false;
    }
    const int choices = world_.choices();
    if (delays_.empty()) choices_ = choices;
    if (most == 0) return true;
    for (int next = delays_.empty() ? 0 : delays_.back() + 1; next < choices; ++next) {
      delays_.push_back(next);
      if (!Run(most - 1)) return false;
      delays_.pop_back();
    }
    return true;
  }
  void Print(int most) const {
    std::printf("%zu launches: %d schedules with at most %d delays at %d places, %zu distinct\n",
                world_.scenario().tokens.size(), runs_, most, choices_, schedules_.size());
  }

  const std::string& what() const { return what_; }

 private:
  World world_;
  Body body_;
  std::string what_;
  std::vector<int> delays_;
  int runs_ = 0, choices_ = 0;
  absl::flat_hash_set<uint64_t> schedules_;
};

Scenario Launches(int count) {
  Scenario scenario = Smallest();
  scenario.first_epoch = 0;
  scenario.tokens.assign(static_cast<size_t>(count), 1);
  return scenario;
}

void ExpectAllRight(int launches, int delays) {
  const Scenario scenario = Launches(launches);
  Enumeration all(scenario, ShippedBody(scenario));
  EXPECT_TRUE(all.Run(delays)) << all.what();
  all.Print(delays);
}

TEST(Bounded, OneLaunch) { ExpectAllRight(1, Repetitions(3, 4)); }

// With three delays, in long runs, hours.
TEST(Bounded, ThreeLaunches) { ExpectAllRight(3, Repetitions(2, 3)); }

// Takes a packet for whole when its first word is there.
class TestsTheFirstWord : public SimtEnvironment {
 public:
  comm::Packet LoadPacket(const comm::Packet* p) {
    comm::Packet packet = SimtEnvironment::LoadPacket(p);
    if (packet.word[0] == comm::kSentinel) return packet;
    for (uint32_t& word : packet.word) word = word == comm::kSentinel ? 0u : word;
    return packet;
  }
};

TEST(Bounded, OneDelayFindsATornPacket) {
  const Scenario scenario = Launches(1);
  Enumeration none(scenario, BodyFor<TestsTheFirstWord>(scenario));
  EXPECT_TRUE(none.Run(0)) << none.what();
  Enumeration one(scenario, BodyFor<TestsTheFirstWord>(scenario));
  EXPECT_FALSE(one.Run(1));
  EXPECT_EQ(one.what().rfind("wrong bits", 0), 0u) << one.what();
}

}  // namespace
}  // namespace stoker::testing::simt
