#include "testing/faults/plans.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "testing/inputs.h"

namespace stoker::testing {
namespace {

using comm::FailureCode;

constexpr uint32_t Bit(FailureCode code) { return 1u << static_cast<uint32_t>(code); }

constexpr uint32_t kNothing = 0;
constexpr uint32_t kTimeout = Bit(FailureCode::kTimeout);
constexpr uint32_t kMismatch = Bit(FailureCode::kMismatch);
constexpr uint32_t kForeign = Bit(FailureCode::kStaleOrForeign);
constexpr uint32_t kOverlap = Bit(FailureCode::kOverlap);
constexpr uint32_t kIndex = Bit(FailureCode::kIndexOutOfRange);
constexpr uint32_t kAborted = Bit(FailureCode::kAborted);

constexpr FaultTime kNow = FaultTime::kAtOnce;
constexpr FaultTime kLater = FaultTime::kAtDeadline;

constexpr std::array<const char*, kFaultWorlds> kEverywhere = {};
constexpr const char* kNoHost = "the simulated machine has no host that creates groups";
constexpr const char* kNoGraphs = "CPU ranks have no graphs";
constexpr const char* kSynchronous = "a CPU rank's launch is a call, no place in a stream";
constexpr const char* kOneExchange = "CPU ranks have one exchange";

constexpr std::array<const char*, kFaultWorlds> kWithHost = {kNoHost};

std::vector<FaultPlan> MakePlans() {
  using D = Deviation;
  return {
      {"LateBeforeALaunch", "launches 0.9 of the deadline after the others", D::kLateBefore, 0.9,
       true, kNothing, kNow, false, kEverywhere},
      {"TooLateBeforeALaunch", "launches 3 deadlines after the others", D::kLateBefore, 3, true,
       kTimeout, kLater, true, kEverywhere},
      {"LateInsideALaunch", "pushes half of its packets 0.9 of the deadline late", D::kLateInside,
       0.9, true, kNothing, kNow, false, kEverywhere},
      {"TooLateInsideALaunch", "pushes half of its packets 3 deadlines late", D::kLateInside, 3,
       true, kTimeout, kLater, true, kEverywhere},
      {"LateAfterALaunch", "ends a launch 0.9 of the deadline late", D::kLateAfter, 0.9, true,
       kNothing, kNow, false, kEverywhere},
      {"TooLateAfterALaunch", "ends a launch 3 deadlines late", D::kLateAfter, 3, true, kTimeout,
       kLater, true, kEverywhere},
      {"NeverLaunches", "launches no more", D::kNeverLaunches, 0, true, kTimeout, kLater, true,
       kEverywhere},
      {"LaunchesOnceTooFew", "leaves one launch out; each has a site of its own", D::kSkipsALaunch,
       0, true, kMismatch, kNow, true, kEverywhere},
      {"LaunchesOnceTooFewAtOneSite",
       "leaves one launch out; all launches are alike, so that neighbours are paired",
       D::kSkipsAtOneSite, 0, false, kTimeout, kLater, true, kEverywhere},
      {"LaunchesOnceTooMany", "launches once more than the others", D::kRepeats, 0, true, kTimeout,
       kLater, false, kEverywhere},
      {"DiesInMidKernel", "dies in the middle of a launch, half of its packets pushed", D::kDies, 0,
       true, kTimeout, kLater, true, kEverywhere},
      {"TornPackets", "stores the words of its packets one by one", D::kTornPackets, 0, true,
       kNothing, kNow, false, kEverywhere},
      {"DelayedPacket", "stores a packet half a deadline later than the others", D::kDelayedPacket,
       0.5, true, kNothing, kNow, false, kEverywhere},
      {"ReorderedPackets", "stores its packets last first", D::kReorderedPackets, 0, true, kNothing,
       kNow, false, kEverywhere},
      {"OtherTokens", "launches another number of tokens", D::kOtherTokens, 0, true, kMismatch,
       kNow, true, kEverywhere},
      {"NoTokens", "launches no tokens", D::kNoTokens, 0, true, kMismatch, kNow, true, kEverywhere},
      {"OtherHiddenSize", "launches another hidden size", D::kOtherHidden, 0, true, kMismatch, kNow,
       true, kEverywhere},
      {"OtherTopK", "launches another top-k", D::kOtherTopK, 0, true, kMismatch, kNow, true,
       kEverywhere},
      {"OtherType", "launches fp16 instead of bf16", D::kOtherType, 0, true, kMismatch, kNow, true,
       kEverywhere},
      {"OtherEps", "launches another eps", D::kOtherEps, 0, true, kMismatch, kNow, true,
       kEverywhere},
      {"OtherMode", "launches the FP32-residual mode", D::kOtherMode, 0, true, kMismatch, kNow,
       true, kEverywhere},
      {"OtherWeightBias", "launches another weight bias", D::kOtherBias, 0, true, kMismatch, kNow,
       true, kEverywhere},
      {"OtherScalingFactor", "launches another routed scaling factor", D::kOtherScaling, 0, true,
       kMismatch, kNow, true, kEverywhere},
      {"OtherSite", "launches another site", D::kOtherSite, 0, true, kMismatch, kNow, true,
       kEverywhere},
      {"OtherOrder", "launches a plain all-reduce where the others launch a finalize", D::kOtherOp,
       0, true, kMismatch, kNow, true, kEverywhere},
      {"OtherExchange",
       "launches two-shot instead of one-shot",
       D::kOtherExchange,
       0,
       true,
       kMismatch,
       kNow,
       true,
       {nullptr, kOneExchange}},
      {"OtherGroup", "joins with another group name", D::kOtherGroup, 0, true, kNothing, kNow,
       false, kWithHost},
      {"OtherCapacity", "joins with a smaller capacity", D::kOtherCapacity, 0, true, kNothing, kNow,
       false, kWithHost},
      {"IndexOutOfRange", "gathers a row that there is not", D::kBadIndex, 0, true, kIndex, kNow,
       true, kEverywhere},
      {"StaleMailbox", "has rubbish in its mailbox when the group is reset", D::kStaleMailbox, 0,
       true, kNothing, kNow, false, kEverywhere},
      {"ForeignHeader", "is told a header of an epoch that its group cannot have sent",
       D::kForeignHeader, 0, true, kForeign, kNow, false, kEverywhere},
      {"SentinelPayload", "sends rows whose words equal the sentinel", D::kSentinelPayload, 0, true,
       kNothing, kNow, false, kEverywhere},
      {"EpochWraps", "starts with the others at epoch 2^32 - 4", D::kEpochWraps, 0, true, kNothing,
       kNow, false, kEverywhere},
      {"GraphReplayedWithoutPeers",
       "replays a captured graph alone",
       D::kReplaysAlone,
       0,
       true,
       kTimeout,
       kLater,
       false,
       {nullptr, kNoGraphs}},
      {"TwoLaunchesAtOnce", "runs two launches at once on its workspace", D::kTwoLaunches, 0, false,
       kOverlap | kMismatch | kForeign | kTimeout, kLater, false, kEverywhere},
      {"SecondStream",
       "launches on a second stream while the first one's launch runs",
       D::kSecondStream,
       0,
       true,
       kNothing,
       kNow,
       false,
       {kNoHost, kSynchronous}},
      {"RecreatedWorkspace",
       "drops its communicator while the peers hold its memory, and joins anew", D::kRecreates, 0,
       true, kTimeout | kAborted, kLater, true, kWithHost},
      {"SecondFailure", "launches other tokens, and fails otherwise while that record stands",
       D::kFailsTwice, 0, true, kMismatch, kNow, true, kEverywhere},
      {"BreaksThePromise",
       "lets a kernel that does not wait for the grid before it run between two launches",
       D::kBreaksPromise,
       0,
       false,
       kOverlap | kMismatch | kForeign | kTimeout,
       kLater,
       false,
       {nullptr, kSynchronous}},
      {"HostStops", "is stopped by its host while the others wait for it", D::kStops, 0, true,
       kAborted, kNow, true, kEverywhere},
  };
}

std::string Codes(uint32_t codes) {
  constexpr const char* kNames[] = {"",         "kTimeout",         "kMismatch", "kStaleOrForeign",
                                    "kOverlap", "kIndexOutOfRange", "kAborted"};
  std::vector<std::string> names;
  for (uint32_t code = 1; code < std::size(kNames); ++code) {
    if (codes >> code & 1u) names.push_back(absl::StrCat("`", kNames[code], "`"));
  }
  return absl::StrJoin(names, " or ");
}

}  // namespace

const char* FaultWorldName(FaultWorld world) {
  constexpr const char* kNames[] = {"simulator", "CPU ranks", "GPU streams", "GPU processes"};
  return kNames[static_cast<int>(world)];
}

bool FaultPlan::needs_test_kernels() const {
  switch (deviation) {
    case Deviation::kLateInside:
    case Deviation::kLateAfter:
    case Deviation::kDies:
    case Deviation::kTornPackets:
    case Deviation::kDelayedPacket:
    case Deviation::kReorderedPackets:
    case Deviation::kTwoLaunches:
    case Deviation::kSecondStream:
    case Deviation::kBreaksPromise:
      return true;
    default:
      return false;
  }
}

std::string FaultPlan::Expectation() const {
  switch (deviation) {
    case Deviation::kOtherGroup:
      return "no rank gets a group; each is told both names";
    case Deviation::kOtherCapacity:
      return "the smaller capacity for all: more tokens are refused on every rank, others are "
             "right";
    case Deviation::kSecondStream:
      return "the host API refuses the second launch; all others are right";
    case Deviation::kSkipsAtOneSite:
      return "`kTimeout` at the deadline on every rank, naming it; before it neighbours are paired";
    case Deviation::kStaleMailbox:
      return "right results after the reset";
    default:
      break;
  }
  if (codes == 0) return "right results, no report";
  std::string text = Codes(codes);
  if (!inside) return absl::StrCat(text, " on every rank, or nothing; rows may be exchanged");
  absl::StrAppend(&text, when == FaultTime::kAtOnce ? " at once" : " at the deadline",
                  " on every surviving rank");
  return absl::StrCat(text, names_the_rank ? ", naming it" : "", "; right or NaN throughout");
}

const std::vector<FaultPlan>& FaultPlans() {
  static const auto* plans = new std::vector<FaultPlan>(MakePlans());
  return *plans;
}

std::vector<FaultPlan> FaultPlansOf(FaultWorld world) {
  std::vector<FaultPlan> plans;
  for (const FaultPlan& plan : FaultPlans()) {
    if (plan.runs_in(world)) plans.push_back(plan);
  }
  return plans;
}

Fault DrawFault(const FaultPlan& plan, uint64_t seed) {
  Random random(seed * 1'000'003u + static_cast<uint64_t>(plan.deviation));
  Fault fault;
  fault.rank = static_cast<int>(random.Below(kFaultRanks));
  fault.launch = 1 + static_cast<int>(random.Below(2));
  fault.bits = random.Bits();
  return fault;
}

}  // namespace stoker::testing
