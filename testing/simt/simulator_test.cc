// The shipped bodies on the simulated machine: right bits in every schedule, and a hang is seen.
#include <gtest/gtest.h>

#include "testing/simt/bodies.h"
#include "testing/simt/fault_plans.h"
#include "testing/simt/scenarios.h"
#include "testing/simt/world.h"

namespace stoker::testing::simt {
namespace {

Scenario Smallest() {
  Scenario scenario;
  scenario.name = "2 ranks, 1 CTA, 1 row warp";
  scenario.tokens = {1, 1, 1, 1};
  return scenario;
}

TEST(Simulator, RightBitsInTheSmallestWorld) {
  World world(Smallest());
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Outcome outcome = world.Run(ShippedBody(world.scenario()), seed);
    ASSERT_EQ(outcome.verdict, Verdict::kRight) << "seed " << seed << ": " << outcome.what;
  }
}

TEST(Simulator, ASeedIsASchedule) {
  World world(Smallest()), other(Smallest());
  const Body body = ShippedBody(world.scenario());
  const Outcome first = world.Run(body, 5);
  world.Run(body, 6);
  const Outcome again = world.Run(body, 5), elsewhere = other.Run(body, 5);
  EXPECT_EQ(first.schedule_hash, again.schedule_hash);
  EXPECT_EQ(first.schedule_hash, elsewhere.schedule_hash);
  EXPECT_EQ(first.class_hash, elsewhere.class_hash);
  EXPECT_NE(first.schedule_hash, world.Run(body, 7).schedule_hash);
}

// Rank 1 never pushes its row.
class LostPush : public SimtEnvironment {
 public:
  void StorePacket(comm::Packet* p, const comm::Packet& packet) {
    if (params().rank == 0 || packet.word[0] == comm::kSentinel) {
      SimtEnvironment::StorePacket(p, packet);
    }
  }
};

TEST(Simulator, AHangIsSeenAndTheStateShown) {
  World world(Smallest());
  const Outcome outcome = world.Run(BodyFor<LostPush>(world.scenario()), 1);
  EXPECT_EQ(outcome.verdict, Verdict::kHang);
  EXPECT_NE(outcome.what.find("rank 0 launch 0 CTA 0 warp 0 lanes 0 to 0: polling"),
            std::string::npos)
      << outcome.what;
}

// Every rank has room for one CTA of two, and the first one waits for the second to start.
// Whichever it is that starts first, the launch ends: in an error at the deadline, or right.
TEST(Simulator, ACtaThatCannotStartIsNoHang) {
  Scenario scenario = ScenarioOf("NeverLaunches", 1, 1);
  scenario.fault = {};
  scenario.tokens = {2, 2};
  scenario.limits.resident_ctas = 1;
  scenario.limits.ticks = 5000;
  scenario.end_ns = 60'000'000'000;
  scenario.codes |= 1u << static_cast<int>(comm::FailureCode::kOverlap);  // tickets that are left
  World world(scenario);
  int reported = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Outcome outcome = world.Run(ShippedBody(scenario), seed);
    ASSERT_TRUE(outcome.verdict == Verdict::kRight || outcome.verdict == Verdict::kNoReport)
        << "seed " << seed << ": " << outcome.what;
    reported += outcome.verdict == Verdict::kRight;
  }
  EXPECT_GT(reported, 25);
}

// A graph of three launches, captured once: each replay finds other inputs at the same addresses.
TEST(Simulator, AGraphThatIsReplayedWithOtherInputsIsRight) {
  Scenario scenario = Smallest();
  scenario.clusters = 2;
  scenario.tokens = {1, 2, 0};
  scenario.early_trigger = true;
  scenario.residual_chain = false;
  scenario.replays = 4;
  World world(scenario);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Outcome outcome = world.Run(ShippedBody(scenario), seed);
    ASSERT_EQ(outcome.verdict, Verdict::kRight) << "seed " << seed << ": " << outcome.what;
  }
}

// One thread returns early.
class LosesAThread : public SimtEnvironment {
 public:
  void SyncBlock() {
    if (thread() == 3) TheMachine()->ExitThread();
    SimtEnvironment::SyncBlock();
  }
};

class LosesALane : public SimtEnvironment {
 public:
  uint32_t Shuffle(uint32_t value, int from) {
    if (lane() == 7) TheMachine()->ExitThread();
    return SimtEnvironment::Shuffle(value, from);
  }
};

TEST(Simulator, ABarrierOrShuffleWithAThreadThatHasExitedIsAnError) {
  World world(Smallest());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Outcome barrier = world.Run(BodyFor<LosesAThread>(world.scenario()), seed);
    EXPECT_EQ(barrier.verdict, Verdict::kBrokenMachine) << barrier.what;
    EXPECT_NE(barrier.what.find("a barrier needs 64 threads"), std::string::npos) << barrier.what;
    const Outcome shuffle = world.Run(BodyFor<LosesALane>(world.scenario()), seed);
    EXPECT_EQ(shuffle.verdict, Verdict::kBrokenMachine) << shuffle.what;
    EXPECT_NE(shuffle.what.find("lane 7, which has exited"), std::string::npos) << shuffle.what;
  }
}

// The sum over ranks is wrong.
class WrongSum : public SimtEnvironment {
 public:
  static float AddRanks(float a, float b) { return a + b + 1.0f; }
};

TEST(Simulator, WrongBitsAreSeen) {
  World world(Smallest());
  const Outcome outcome = world.Run(BodyFor<WrongSum>(world.scenario()), 1);
  EXPECT_EQ(outcome.verdict, Verdict::kWrongBits) << outcome.what;
}

}  // namespace
}  // namespace stoker::testing::simt
