#include "testing/faults/script.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"

namespace stoker::testing {
namespace {

constexpr int kTokens = 4;
constexpr int kHidden = 512;
constexpr int kCapacity = 8;
constexpr absl::Duration kLong = absl::Seconds(30);     // a deadline that nobody may wait for
constexpr absl::Duration kAtOnce = absl::Seconds(5);    // on a busy machine
constexpr absl::Duration kReleased = absl::Seconds(2);  // a second after it was stopped
constexpr absl::Duration kMeeting = absl::Seconds(40);  // of the ranks, through their exchange

absl::Duration DeadlineOf(const FaultPlan& plan, const FaultPatience& patience) {
  if (plan.late > 0 && plan.late < 1) return patience.precise;
  return plan.codes != 0 && plan.when == FaultTime::kAtDeadline ? patience.deadline : kLong;
}

class Script {
 public:
  Script(const FaultPlan& plan, const Fault& fault, int rank, const FaultPatience& patience)
      : plan_(plan),
        fault_(fault),
        rank_(rank),
        patience_(patience),
        deadline_(DeadlineOf(plan, patience)) {}

  absl::Status Run(FaultMember& member) {
    STOKER_RETURN_IF_ERROR(Prepare(member));
    STOKER_RETURN_IF_ERROR(member.exchange().Barrier("prepared", kMeeting));
    STOKER_RETURN_IF_ERROR(Before(member));
    STOKER_RETURN_IF_ERROR(Launches(member));
    if (Is(Deviation::kDies) && member.is_process()) return WithoutTheDead(member);
    STOKER_RETURN_IF_ERROR(member.exchange().Barrier("the plan's launches", kMeeting));
    if (plan_.codes == 0) {
      const absl::Status health = member.Health();
      return health.ok() ? RightFromNowOn(member, 3) : Unexpected("a report", health);
    }
    const bool reported = !member.Health().ok();
    const bool must = plan_.inside || Is(Deviation::kSkipsAtOneSite);
    if (!reported && must) return absl::InternalError("no report on this rank");
    if (reported) {
      STOKER_RETURN_IF_ERROR(CheckReport(member));
      const FaultEnd refused = member.Run(normal_[0]);
      if (refused.status.ok()) return absl::InternalError("a launch after the report was taken");
    }
    STOKER_RETURN_IF_ERROR(member.exchange().Barrier("the report", kMeeting));
    STOKER_RETURN_IF_ERROR(member.Reset(kMeeting));
    STOKER_RETURN_IF_ERROR(member.SetTimeout(kLong));
    return RightFromNowOn(member, patience_.launches_after);
  }

  // For a plan whose rank leaves the group without a word: this rank is one that stays.
  absl::Status RunWithoutThem(FaultMember& member) {
    STOKER_RETURN_IF_ERROR(Prepare(member));
    const FaultEnd end = member.Run(normal_[0]);
    if (end.status.ok()) return absl::InternalError("a launch without a member was right");
    if (end.result != FaultResult::kNan) return absl::DataLossError("data without a member");
    return CheckReport(member);
  }

  absl::Status RunNormally(FaultMember& member) {
    STOKER_RETURN_IF_ERROR(Prepare(member));
    STOKER_RETURN_IF_ERROR(member.exchange().Barrier("prepared", kMeeting));
    return RightFromNowOn(member, 5);
  }

  absl::Status TooManyTokens(FaultMember& member) {
    FaultLaunch launch = Normal(0);
    launch.inputs.shape.tokens = kCapacity;  // of all ranks but one
    STOKER_ASSIGN_OR_RETURN(const int handle, member.Prepare(launch));
    const FaultEnd end = member.Run(handle);
    if (end.status.code() != absl::StatusCode::kInvalidArgument) {
      return Unexpected("more tokens than a member's capacity", end.status);
    }
    return RunNormally(member);
  }

 private:
  bool Is(Deviation deviation) const { return plan_.deviation == deviation; }
  bool mine() const { return rank_ == fault_.rank; }

  absl::Status Unexpected(const char* what, const absl::Status& status) const {
    return absl::InternalError(absl::StrCat("unexpected of ", what, ": ", status.ToString()));
  }

  FaultLaunch Normal(int i) const {
    FaultLaunch launch;
    launch.inputs.shape = {kTokens, kHidden, comm::WireType::kBf16};
    launch.inputs.seed = fault_.bits + static_cast<uint64_t>(i);
    launch.site = Is(Deviation::kSkipsALaunch) ? static_cast<uint32_t>(i) : 0u;
    launch.plain = Is(Deviation::kSentinelPayload);
    launch.sentinel_rank = launch.plain ? fault_.rank : -1;
    return launch;
  }

  FaultLaunch Deviating() const {
    FaultLaunch launch = Normal(fault_.launch);
    InputOptions& in = launch.inputs;
    launch.pause = deadline_ * plan_.late;
    switch (plan_.deviation) {
      case Deviation::kLateInside:
        launch.hook = FaultHook::kPausesInside;
        break;
      case Deviation::kLateAfter:
        launch.hook = FaultHook::kPausesAtEnd;
        break;
      case Deviation::kDies:
        launch.hook = FaultHook::kDies;
        break;
      case Deviation::kTornPackets:
        launch.hook = FaultHook::kTorn;
        break;
      case Deviation::kDelayedPacket:
        launch.hook = FaultHook::kDelayed;
        break;
      case Deviation::kReorderedPackets:
        launch.hook = FaultHook::kReordered;
        break;
      case Deviation::kOtherTokens:
      case Deviation::kFailsTwice:
        in.shape.tokens = kTokens - 1;
        break;
      case Deviation::kNoTokens:
        in.shape.tokens = 0;
        break;
      case Deviation::kOtherHidden:
        in.shape.hidden = kHidden - 8;
        break;
      case Deviation::kOtherTopK:
        in.top_k = 6;
        break;
      case Deviation::kOtherType:
        in.shape.wire_type = comm::WireType::kFp16;
        break;
      case Deviation::kOtherEps:
        in.eps *= 2;
        break;
      case Deviation::kOtherMode:
        in.mode = comm::Mode::kFp32Residual;
        break;
      case Deviation::kOtherBias:
        in.weight_bias = 1.0f;
        break;
      case Deviation::kOtherScaling:
        in.routed_scaling_factor = 1.0f;
        break;
      case Deviation::kOtherSite:
        launch.site = 7;
        break;
      case Deviation::kOtherOp:
        launch.plain = true;
        break;
      case Deviation::kOtherExchange:
        launch.two_shot = true;
        break;
      case Deviation::kBadIndex:
        launch.bad_index = true;
        break;
      case Deviation::kTwoLaunches:
      case Deviation::kSecondStream:
      case Deviation::kBreaksPromise:
        launch.hook = FaultHook::kPausesInside;  // so that it is still in flight
        launch.pause = absl::Milliseconds(150);
        launch.graph = Is(Deviation::kTwoLaunches);
        break;
      case Deviation::kReplaysAlone:
        launch.graph = true;
        break;
      default:
        break;
    }
    return launch;
  }

  absl::Status Prepare(FaultMember& member) {
    for (int i = 0; i < kFaultLaunches; ++i) {
      STOKER_ASSIGN_OR_RETURN(const int handle, member.Prepare(Normal(i)));
      normal_.push_back(handle);
    }
    if (!mine()) return absl::OkStatus();
    STOKER_ASSIGN_OR_RETURN(deviating_, member.Prepare(Deviating()));
    return absl::OkStatus();
  }

  // What is wrong before the first launch.
  absl::Status Before(FaultMember& member) {
    if (Is(Deviation::kStaleMailbox)) {
      if (mine()) STOKER_RETURN_IF_ERROR(member.SpoilMailbox());
      STOKER_RETURN_IF_ERROR(member.exchange().Barrier("spoilt", kMeeting));
      return member.Reset(kMeeting);
    }
    if (Is(Deviation::kForeignHeader)) {
      const int source = (rank_ + 1) % kFaultRanks;
      if (mine()) STOKER_RETURN_IF_ERROR(member.SpoilHeader(source, 0x40000000u));
      return member.exchange().Barrier("spoilt", kMeeting);
    }
    return absl::OkStatus();
  }

  absl::Status Launches(FaultMember& member) {
    const bool repeats = Is(Deviation::kRepeats) && mine();
    for (int i = 0; i < kFaultLaunches + (repeats ? 1 : 0); ++i) {
      const bool now = i == fault_.launch && mine();
      if (mine() && i >= fault_.launch && Is(Deviation::kNeverLaunches)) break;
      if (now && (Is(Deviation::kSkipsALaunch) || Is(Deviation::kSkipsAtOneSite))) continue;
      // Its own header would hide the foreign one.
      const bool hides = rank_ == (fault_.rank + 1) % kFaultRanks && i == 0;
      if (Is(Deviation::kForeignHeader) && hides) absl::SleepFor(absl::Milliseconds(200));
      if (now && Is(Deviation::kStops)) {
        absl::SleepFor(absl::Milliseconds(100));  // the others wait by now
        STOKER_RETURN_IF_ERROR(member.Abort());
        break;
      }
      if (Is(Deviation::kReplaysAlone) && !mine() && i == fault_.launch) break;
      if (now && Is(Deviation::kLateBefore)) absl::SleepFor(deadline_ * plan_.late);
      const FaultEnd end = RunOne(member, std::min(i, kFaultLaunches - 1), now);
      if (now && Is(Deviation::kDies)) {
        member.EndProcess();
        return absl::OkStatus();
      }
      const absl::Status judged = Judge(end);
      if (!judged.ok()) {
        return absl::InternalError(absl::StrCat("launch ", i, ": ", judged.message()));
      }
      if (!end.status.ok()) break;
    }
    return absl::OkStatus();
  }

  FaultEnd RunOne(FaultMember& member, int i, bool now) {
    if (!now) return member.Run(normal_[i]);
    switch (plan_.deviation) {
      case Deviation::kReplaysAlone:
        return member.Replay(deviating_);
      case Deviation::kTwoLaunches:
        return member.RunTwice(deviating_);
      case Deviation::kSecondStream:
        return member.RunWithSecondStream(deviating_);
      case Deviation::kBreaksPromise:
        return member.RunWithBrokenPromise(deviating_);
      case Deviation::kFailsTwice: {
        const FaultEnd end = member.Run(deviating_);
        const absl::Status stopped = member.Abort();
        return stopped.ok() ? end : FaultEnd{stopped, FaultResult::kOther, end.time};
      }
      default:
        return member.Run(deviating_);
    }
  }

  // One launch on this rank.
  absl::Status Judge(const FaultEnd& end) const {
    // A peer of a rank that gave NaN for one token may end before it is told.
    const bool mixed = Is(Deviation::kBadIndex) && !mine() && end.result == FaultResult::kMixed;
    if (end.status.ok()) {
      if (end.result == FaultResult::kRight || mixed || !plan_.inside) return absl::OkStatus();
      return absl::DataLossError("no failure, and the outputs are not right");
    }
    if (plan_.codes == 0) return Unexpected("a launch", end.status);
    if (!plan_.inside) return absl::OkStatus();
    if (end.result != FaultResult::kRight && end.result != FaultResult::kNan && !mixed) {
      return absl::DataLossError(
          absl::StrCat("neither right nor NaN throughout after: ", end.status.ToString()));
    }
    const absl::Duration limit = Is(Deviation::kStops) ? kReleased
                                 : plan_.when == FaultTime::kAtOnce
                                     ? kAtOnce
                                     : deadline_ * std::max(1.0, plan_.late) + patience_.slack;
    if (end.time <= limit) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("ended after ", absl::FormatDuration(end.time),
                                            " instead of ", absl::FormatDuration(limit)));
  }

  absl::Status CheckReport(FaultMember& member) const {
    const absl::Status health = member.Health();
    const comm::HealthPage& page = member.page();
    const uint32_t generation = __atomic_load_n(&page.generation, __ATOMIC_ACQUIRE);
    for (const comm::RankHealth& rank : page.ranks) {
      if (__atomic_load_n(&rank.record.valid, __ATOMIC_ACQUIRE) != generation + 1u) continue;
      // One that could not be told in time may blame whoever it waits for as well.
      if ((plan_.codes >> static_cast<uint32_t>(rank.record.code) & 1u) == 0u) {
        return Unexpected("this plan", health);
      }
    }
    if (plan_.names_the_rank &&
        !absl::StrContains(health.message(), absl::StrCat("rank ", fault_.rank))) {
      return Unexpected("a report that names the rank", health);
    }
    return absl::OkStatus();
  }

  absl::Status RightFromNowOn(FaultMember& member, int launches) {
    for (int i = 0; i < launches; ++i) {
      const FaultEnd end = member.Run(normal_[static_cast<size_t>(i % kFaultLaunches)]);
      if (!end.status.ok()) return Unexpected("a launch afterwards", end.status);
      if (end.result != FaultResult::kRight) return absl::DataLossError("wrong bits afterwards");
    }
    return member.exchange().Barrier("all over", kMeeting);
  }

  // A rank has died: the report, the reset and the end name it.
  absl::Status WithoutTheDead(FaultMember& member) const {
    const absl::Status health = member.Health();
    if (health.ok()) return absl::InternalError("no report of the death");
    STOKER_RETURN_IF_ERROR(CheckReport(member));
    const std::string dead = absl::StrCat("rank ", fault_.rank);
    const absl::Status reset = member.Reset(absl::Seconds(3));
    if (!absl::StrContains(reset.message(), dead)) return Unexpected("a reset", reset);
    const absl::Status closed = member.Close(absl::Seconds(3));
    return closed.ok() ? absl::InternalError("closing was not told of the death")
                       : absl::OkStatus();
  }

  const FaultPlan& plan_;
  const Fault& fault_;
  const int rank_;
  const FaultPatience& patience_;
  const absl::Duration deadline_;
  std::vector<int> normal_;
  int deviating_ = -1;
};

}  // namespace

comm::GroupOptions FaultGroup(const FaultPlan& plan, const Fault& fault, int rank,
                              const std::string& name, const FaultPatience& patience) {
  comm::GroupOptions options;
  options.name = name;
  options.capacity = kCapacity;
  options.hidden_max = kHidden;
  options.setup_timeout = absl::Seconds(60);
  options.timeout = options.startup_timeout = DeadlineOf(plan, patience);
  if (plan.deviation == Deviation::kEpochWraps) options.first_epoch = 0xFFFFFFFCu;
  if (rank == fault.rank) {
    if (plan.deviation == Deviation::kOtherGroup) options.name += "-other";
    if (plan.deviation == Deviation::kOtherCapacity) options.capacity = kTokens + 1;
  }
  return options;
}

absl::Status RunFaultScript(const FaultPlan& plan, const Fault& fault, int rank,
                            const std::string& name, const FaultPatience& patience,
                            const MakeFaultMember& make) {
  Script script(plan, fault, rank, patience);
  const comm::GroupOptions options = FaultGroup(plan, fault, rank, name, patience);
  auto member = make(options);
  if (plan.deviation == Deviation::kOtherGroup) {
    if (member.ok()) return absl::InternalError("a group of two names was made");
    const bool named = absl::StrContains(member.status().message(), "group name differs");
    return named ? absl::OkStatus() : member.status();
  }
  STOKER_RETURN_IF_ERROR(member.status());
  absl::Status status;
  if (plan.deviation == Deviation::kOtherCapacity) {
    status = script.TooManyTokens(**member);
  } else if (plan.deviation == Deviation::kRecreates) {
    // Its peers keep the old memory mapped while the new group lives.
    std::unique_ptr<FaultMember> old = std::move(*member);
    if (rank == fault.rank) {
      old.reset();
    } else {
      STOKER_RETURN_IF_ERROR(script.RunWithoutThem(*old));
    }
    comm::GroupOptions anew = options;
    anew.name += "-again";
    anew.timeout = anew.startup_timeout = kLong;
    STOKER_ASSIGN_OR_RETURN(std::unique_ptr<FaultMember> again, make(anew));
    Script second(plan, fault, rank, patience);
    STOKER_RETURN_IF_ERROR(second.RunNormally(*again));
    return again->Close(absl::Seconds(20));
  } else {
    status = script.Run(**member);
  }
  if (!status.ok()) return status;
  if (plan.deviation == Deviation::kDies && (*member)->is_process()) return status;
  return (*member)->Close(absl::Seconds(20));
}

}  // namespace stoker::testing
