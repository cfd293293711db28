// Fault plans: what one rank of a group may do differently, and exactly what must come of it.
//
// One table for all worlds. A plan says whether it is inside the fault model
// (docs/decisions/protocol_safety.md), what is right, and, for a world in which it cannot happen,
// why. Which rank deviates, in which launch and with which bits is drawn from a seed. The page
// docs/fault_plans.md is generated from the table.
#pragma once

#include <array>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "comm/protocol.h"

namespace stoker::testing {

enum class FaultWorld { kSimulator, kCpuRanks, kGpuStreams, kGpuProcesses };
inline constexpr int kFaultWorlds = 4;
const char* FaultWorldName(FaultWorld world);

enum class Deviation {
  kLateBefore,      // the host launches late
  kLateInside,      // half of a launch's packets are pushed, the others `late` later
  kLateAfter,       // a launch has exchanged everything and ends late
  kNeverLaunches,   // from one launch on
  kSkipsALaunch,    // every launch at a site of its own
  kSkipsAtOneSite,  // all launches alike
  kRepeats,         // one launch more than the others, at the end
  kDies,            // in the middle of a launch, half of its packets pushed
  kTornPackets,     // the words of a packet one by one
  kDelayedPacket,   // one packet of a row half a deadline later than the others
  kReorderedPackets,
  kOtherTokens,
  kNoTokens,
  kOtherHidden,
  kOtherTopK,
  kOtherType,
  kOtherEps,
  kOtherMode,
  kOtherBias,
  kOtherScaling,
  kOtherSite,
  kOtherOp,
  kOtherExchange,
  kOtherGroup,
  kOtherCapacity,
  kBadIndex,
  kStaleMailbox,
  kForeignHeader,
  kSentinelPayload,
  kEpochWraps,
  kReplaysAlone,
  kTwoLaunches,   // at once on one workspace
  kSecondStream,  // the host API is asked to
  kRecreates,     // drops its member of the group and makes another while peers hold the memory
  kFailsTwice,
  kBreaksPromise,  // of programmatic launch
  kStops,          // the host releases the group while launches wait
};

// When an error must be there.
enum class FaultTime {
  kAtOnce,      // long before the deadline
  kAtDeadline,  // when it has passed
};

struct FaultPlan {
  std::string name;
  std::string what;  // one rank does
  Deviation deviation;
  double late;     // of the deadline, for kLate*
  bool inside;     // the fault model
  uint32_t codes;  // bit c for FailureCode c: exactly these may be reported; 0: all is right
  FaultTime when;
  bool names_the_rank;                           // the report names the rank that deviates
  std::array<const char*, kFaultWorlds> cannot;  // why it cannot happen there; null: it runs

  bool runs_in(FaultWorld world) const { return cannot[static_cast<int>(world)] == nullptr; }
  // On a GPU it needs kernels that only test builds have (testing/gpu/fault_hooks.h).
  bool needs_test_kernels() const;
  // In words: what must come of it.
  std::string Expectation() const;
};

// For test runners.
inline void PrintTo(const FaultPlan& plan, std::ostream* os) { *os << plan.name; }

const std::vector<FaultPlan>& FaultPlans();
std::vector<FaultPlan> FaultPlansOf(FaultWorld world);

// A plan's choices, drawn from a seed.
inline constexpr int kFaultRanks = 3;
inline constexpr int kFaultLaunches = 4;
struct Fault {
  int rank;       // that deviates
  int launch;     // in which it does: 1 or 2 of kFaultLaunches
  uint64_t bits;  // for whatever else is open
};
Fault DrawFault(const FaultPlan& plan, uint64_t seed);

}  // namespace stoker::testing
