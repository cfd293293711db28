#include "testing/simt/bodies.h"
#include "testing/simt/fault_plans.h"
#include "testing/simt/mutants/mutant_environment.h"
#include "testing/simt/mutants/mutants.h"
#include "testing/simt/scenarios.h"

namespace stoker::testing::simt {
namespace {

class UnboundedWait : public MutantEnvironment {
 public:
  uint64_t Clock() { return 1; }
};

// Measures the deadline from its own last look, so that each packet has one of its own.
class DeadlinePerLook : public MutantEnvironment {
 public:
  uint64_t CompareAndSwap64(uint64_t* p, uint64_t expected, uint64_t desired) {
    if (p != &control()->wait_since_ns) {
      return SimtEnvironment::CompareAndSwap64(p, expected, desired);
    }
    StoreWord64(p, desired);
    return desired;
  }
};

// A thread that fails leaves, without the barriers that the others still wait at.
class LeavesOnFailure : public MutantEnvironment {
 public:
  void RaiseTrouble() {
    SimtEnvironment::RaiseTrouble();
    if (!IsServiceWarp() && control()->abort != 0u) TheMachine()->ExitThread();
  }
};

// Fills the outputs with NaN as soon as it fails, whatever the launch's other CTAs still store.
class FillsWithoutWaiting : public MutantEnvironment {
 public:
  uint32_t LoadWord(const uint32_t* p) {
    if (p == &control()->finished[0] || p == &control()->finished[1]) {
      if (Trouble()) return 1u << 30;
    }
    return SimtEnvironment::LoadWord(p);
  }
  // The settling takes no time.
  uint64_t Clock() { return SimtEnvironment::Clock() + uint64_t{memory().now()} * 100'000u; }
};

// Every lane of the service warp decides for itself whether the outputs stand.
class LanesDecide : public MutantEnvironment {
 public:
  void SyncRows(int count) {
    if (!IsServiceWarp()) SimtEnvironment::SyncRows(count);
  }
  void ClearTrouble() {
    if (!IsServiceWarp()) SimtEnvironment::ClearTrouble();
  }
  bool Trouble() {
    const bool trouble = SimtEnvironment::Trouble();
    const bool arrived =
        control()->finished[ThisEpoch() & 1u] == static_cast<uint32_t>(params().tokens);
    if (!IsServiceWarp() || !trouble || !arrived) return trouble;
    return SimtEnvironment::LoadWord(&control()->abort) != 0u;
  }
};

// CTA 0 does not wait for CTAs that have not started when it sees the abort word.
class AdvancesAtOnceOnAbort : public MutantEnvironment {
 public:
  uint32_t LoadWord(const uint32_t* p) {
    const uint32_t value = SimtEnvironment::LoadWord(p);
    if (p == &control()->started && SimtEnvironment::LoadWord(&control()->abort) != 0u) {
      return 1u << 30;
    }
    return value;
  }
};

class KeepsTheAbortToItself : public MutantEnvironment {
 public:
  void StoreWord(uint32_t* p, uint32_t v) {
    for (int r = 0; r < params().layout.world; ++r) {
      if (r != params().rank && p == &comm::ControlOf(params().workspace[r])->abort) return;
    }
    SimtEnvironment::StoreWord(p, v);
  }
};

// Says that a record is there before its fields are.
class NoFenceBeforeValid : public MutantEnvironment {
 public:
  void FenceSystem() {}
};

// A rank with bad indices says so and gives finite rows.
class BadRowsLookRight : public MutantEnvironment {
 public:
  bool Any(bool) { return false; }
};

// A host goes on from a reset as soon as it has wiped its own memory.
class ResetWithoutItsSecondBarrier : public MutantEnvironment {
 public:
  void MeetHosts(int which) {
    if (which != 2) SimtEnvironment::MeetHosts(which);
  }
};

// Nor does it wait for the others to have drained.
class ResetWithoutItsFirstBarrier : public MutantEnvironment {
 public:
  void MeetHosts(int which) {
    if (which != 1) SimtEnvironment::MeetHosts(which);
  }
};

template <class Env>
Mutant Make(const char* name, const char* what, const char* step, std::vector<Verdict> predicted,
            const Scenario& scenario) {
  return {name, what, step, predicted, scenario, BodyFor<Env>(scenario), ShippedBody(scenario)};
}

}  // namespace

std::vector<Mutant> FailureMutants() {
  using V = Verdict;
  const Scenario dead = ScenarioOf("NeverLaunches", 1, 1);
  const Scenario mismatch = ScenarioOf("OtherTokens", 1, 1);
  Scenario looking = ScenarioOf("NoTokens", 2, 1);
  looking.packets = 16;  // so that all lanes have something to fill
  looking.look_rate = 16;
  const Scenario index = ScenarioOf("IndexOutOfRange", 0, 1);
  return {
      Make<UnboundedWait>("UnboundedWait", "the clock never reaches the deadline",
                          "every wait has a deadline", {V::kHang}, dead),
      Make<DeadlinePerLook>("DeadlinePerLook", "every look starts a deadline of its own",
                            "the deadline counts from the launch's first wait", {V::kHang}, dead),
      Make<LeavesOnFailure>("LeavesOnFailure", "a failing thread returns before the barriers",
                            "a failing thread goes on through every barrier",
                            {V::kHang, V::kBrokenMachine}, dead),
      Make<FillsWithoutWaiting>("FillsWithoutWaiting", "a failing CTA fills NaN by itself, at once",
                                "outputs: NaN is filled when all CTAs have arrived",
                                {V::kWrongBits}, index),
      Make<LanesDecide>("LanesDecide", "each lane looks at the abort word for itself",
                        "outputs: one answer for all of them", {V::kWrongBits}, looking),
      Make<AdvancesAtOnceOnAbort>("AdvancesAtOnceOnAbort",
                                  "an abort ends the wait for CTAs that have not started",
                                  "the epoch: CTA 0 waits for every ticket",
                                  {V::kFalseAlarm, V::kNoReport, V::kHang}, mismatch),
      Make<KeepsTheAbortToItself>("KeepsTheAbortToItself", "does not tell the peers that it failed",
                                  "an error on every surviving rank",
                                  {V::kNoReport, V::kFalseAlarm}, index),
      Make<NoFenceBeforeValid>("NoFenceBeforeValid", "a record is valid before it is complete",
                               "the fields come before the word that says so", {V::kNoReport},
                               mismatch),
      Make<BadRowsLookRight>("BadRowsLookRight", "a row that cannot be right looks right",
                             "never finite wrong data", {V::kWrongBits}, index),
      Make<ResetWithoutItsSecondBarrier>("ResetWithoutItsSecondBarrier",
                                         "launches again before the others have wiped",
                                         "a reset: what the next generation sends is not wiped",
                                         {V::kHang, V::kFalseAlarm}, ResetBetweenLaunches()),
      Make<ResetWithoutItsFirstBarrier>(
          "ResetWithoutItsFirstBarrier", "wipes before the others have drained",
          "a reset: what the last generation sends is wiped",
          {V::kHang, V::kFalseAlarm, V::kWrongBits}, ResetBetweenLaunches()),
  };
}

}  // namespace stoker::testing::simt
