#include "testing/simt/scenarios.h"

#include <cstdlib>

namespace stoker::testing::simt {
namespace {

constexpr uint64_t kMs = 1'000'000;

constexpr uint32_t Bit(comm::FailureCode code) { return 1u << static_cast<uint32_t>(code); }

// Time for the deadline and for what follows it: the settling, in steps of the virtual clock.
Scenario WithTime(Scenario s) {
  s.timeout_ns = 100 * kMs;
  s.limits.ticks = 100;
  s.limits.tick_ns = 5 * kMs;
  s.end_ns = 150 * kMs;
  return s;
}

Scenario Fault3(const char* name) {
  Scenario s;
  s.name = name;
  s.world = 3;
  s.clusters = 2;
  s.tokens = {2, 2, 1, 2};
  return WithTime(s);
}

}  // namespace

Scenario Smallest() {
  Scenario s;
  s.name = "Smallest";
  s.tokens = {1, 1, 1, 1};
  return s;
}

Scenario NoTokensBetween() {
  Scenario s;
  s.name = "NoTokensBetween";
  s.tokens = {1, 0, 1, 0, 0, 1};
  s.early_trigger = true;
  return s;
}

Scenario TwoClusters() {
  Scenario s;
  s.name = "TwoClusters";
  s.clusters = 2;
  s.tokens = {2, 2, 2, 2};
  return s;
}

Scenario TwoCtasACluster() {
  Scenario s;
  s.name = "TwoCtasACluster";
  s.cluster_size = 2;
  s.packets = 33;
  s.tokens = {4, 3};
  return s;
}

Scenario ThreeRanksInTwoShots() {
  Scenario s;
  s.name = "TwoShot";
  s.world = 3;
  s.clusters = 2;
  s.packets = 2;
  s.two_shot = true;
  s.tokens = {3, 2, 0, 4, 3};
  return s;
}

std::vector<Scenario> Faults() {
  std::vector<Scenario> all;
  {
    Scenario s = Fault3("OneRankHasOtherTokens");
    s.fault = {.rank = 1, .launch = 1, .tokens = 1};
    s.codes = Bit(comm::FailureCode::kMismatch);
    s.end_ns = 80 * kMs;  // at once, not at the deadline
    all.push_back(s);
  }
  {
    Scenario s = Fault3("OneRankHasNoTokens");
    s.fault = {.rank = 2, .launch = 1, .tokens = 0};
    s.codes = Bit(comm::FailureCode::kMismatch);
    s.end_ns = 80 * kMs;
    all.push_back(s);
  }
  {
    Scenario s = Fault3("OneRankIsAtAnotherSite");
    s.fault = {.rank = 0, .launch = 2, .site = 7};
    s.codes = Bit(comm::FailureCode::kMismatch);
    s.end_ns = 80 * kMs;
    all.push_back(s);
  }
  {
    Scenario s = Fault3("OneRankStopsLaunching");
    s.fault = {.rank = 1, .launch = 1, .never = true};
    s.codes = Bit(comm::FailureCode::kTimeout);
    all.push_back(s);
  }
  {
    Scenario s = Fault3("OneRankIsLateWithinTheDeadline");
    s.fault = {.rank = 1, .launch = 1, .late_ns = 90 * kMs};
    all.push_back(s);
  }
  {
    Scenario s = Fault3("OneRankIsTooLate");
    s.fault = {.rank = 1, .launch = 1, .late_ns = 300 * kMs};
    s.codes = Bit(comm::FailureCode::kTimeout);
    s.end_ns = 350 * kMs;
    all.push_back(s);
  }
  {
    Scenario s = Fault3("AnIndexIsOutOfRange");
    s.source = Source::kFinalize;
    s.fault = {.rank = 0, .launch = 1, .index_out_of_range = true};
    s.codes = Bit(comm::FailureCode::kIndexOutOfRange);
    s.end_ns = 80 * kMs;
    all.push_back(s);
  }
  {
    Scenario s = Fault3("TwoLaunchesOnOneWorkspace");
    s.fault = {.rank = 1, .launch = 2, .overlaps = true};
    // What the second launch tells and pushes may reach a peer in place of the first one's.
    s.codes = Bit(comm::FailureCode::kOverlap) | Bit(comm::FailureCode::kMismatch) |
              Bit(comm::FailureCode::kStaleOrForeign) | Bit(comm::FailureCode::kTimeout);
    // The counters are of two launches; each ends, but only when it has waited for others for a
    // thousand looks.
    s.limits.ticks = 3000;
    s.end_ns = 12000 * kMs;
    all.push_back(s);
  }
  return all;
}

Scenario FaultNamed(const char* name) {
  for (const Scenario& scenario : Faults()) {
    if (scenario.name == name) return scenario;
  }
  std::abort();
}

}  // namespace stoker::testing::simt
