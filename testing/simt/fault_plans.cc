#include "testing/simt/fault_plans.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "testing/simt/bodies.h"

namespace stoker::testing::simt {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kDeadline = 100 * kMs;

// Every second lane of a row warp is one that misbehaves.
class PausesInside : public SimtEnvironment {
 public:
  void StorePacket(comm::Packet* p, const comm::Packet& packet) {
    if (lane() % 2 == 1 && packet.word[0] != comm::kSentinel) TheMachine()->Pause();
    SimtEnvironment::StorePacket(p, packet);
  }
};

class PausesAtEnd : public SimtEnvironment {
 public:
  void CountUp(uint32_t* p) {
    TheMachine()->Pause();
    SimtEnvironment::CountUp(p);
  }
};

// What it has stored arrives; the rest never happens.
class Dies : public SimtEnvironment {
 public:
  void StorePacket(comm::Packet* p, const comm::Packet& packet) {
    if (lane() % 2 == 1) TheMachine()->ExitThread();
    SimtEnvironment::StorePacket(p, packet);
  }
  void ArriveRows() { TheMachine()->ExitThread(); }
  void AwaitRows() { TheMachine()->ExitThread(); }
};

class Torn : public SimtEnvironment {
 public:
  void StorePacket(comm::Packet* p, const comm::Packet& packet) {
    for (int w = 0; w < comm::kPacketWords; ++w) StoreWord(&p->word[w], packet.word[w]);
  }
};

class Reordered : public SimtEnvironment {
 public:
  void StorePacket(comm::Packet* p, const comm::Packet& packet) {
    for (int lanes = lane(); lanes < 4; ++lanes) TheMachine()->Point();
    for (int w = comm::kPacketWords - 1; w >= 0; --w) StoreWord(&p->word[w], packet.word[w]);
  }
};

template <class Env>
constexpr Body kHooked = RunBody<Env, OneShot, Plain, 1>;

}  // namespace

Scenario ScenarioOf(const FaultPlan& plan, int rank, int launch) {
  Scenario s;
  s.name = plan.name;
  s.world = kFaultRanks;
  s.clusters = 2;
  s.packets = 2;
  s.tokens = {2, 2, 1, 2};
  s.timeout_ns = kDeadline;
  s.limits.ticks = 200;
  s.limits.tick_ns = 5 * kMs;
  s.codes = plan.codes;
  s.outside = !plan.inside;
  // Time for the deadline and for what follows it: the settling, in steps of the virtual clock.
  s.end_ns = plan.when == FaultTime::kAtOnce ? 80 * kMs : 150 * kMs;
  Fault& fault = s.fault;
  fault.rank = rank;
  fault.launch = launch;
  const auto late = static_cast<uint64_t>(plan.late * static_cast<double>(kDeadline));
  if (plan.late > 1) s.end_ns = late + 50 * kMs;
  switch (plan.deviation) {
    case Deviation::kLateBefore:
      fault.late_ns = late;
      return s;
    case Deviation::kLateInside:
      fault.pause_ns = late;
      fault.body = kHooked<PausesInside>;
      return s;
    case Deviation::kDelayedPacket:
      s.tokens = {1, 1, 1, 1};  // so that there is one such packet
      fault.pause_ns = late;
      fault.body = kHooked<PausesInside>;
      return s;
    case Deviation::kLateAfter:
      fault.pause_ns = late;
      fault.body = kHooked<PausesAtEnd>;
      return s;
    case Deviation::kNeverLaunches:
      fault.never = true;
      return s;
    case Deviation::kSkipsALaunch:
      s.own_sites = true;
      fault.skips = true;
      return s;
    case Deviation::kSkipsAtOneSite:
      s.tokens = {2, 2, 2, 2};
      fault.skips = true;
      return s;
    case Deviation::kRepeats:
      fault.repeats = true;
      return s;
    case Deviation::kDies:
      fault.dies = true;
      fault.body = kHooked<Dies>;
      return s;
    case Deviation::kTornPackets:
      fault.body = kHooked<Torn>;
      return s;
    case Deviation::kReorderedPackets:
      fault.body = kHooked<Reordered>;
      return s;
    case Deviation::kOtherTokens:
      fault.tokens = s.tokens[static_cast<size_t>(launch)] == 2 ? 1 : 2;
      return s;
    case Deviation::kNoTokens:
      fault.tokens = 0;
      return s;
    case Deviation::kOtherSite:
      fault.site = 7;
      return s;
    case Deviation::kOtherHidden:
      fault.describe = [](comm::LaunchDescriptor& d) { d.hidden += 8; };
      return s;
    case Deviation::kOtherTopK:
      fault.describe = [](comm::LaunchDescriptor& d) { d.top_k += 1; };
      return s;
    case Deviation::kOtherType:
      fault.describe = [](comm::LaunchDescriptor& d) { d.wire_type = comm::WireType::kFp16; };
      return s;
    case Deviation::kOtherEps:
      fault.describe = [](comm::LaunchDescriptor& d) { d.eps += 1e-6f; };
      return s;
    case Deviation::kOtherMode:
      fault.describe = [](comm::LaunchDescriptor& d) { d.mode = comm::Mode::kFp32Residual; };
      return s;
    case Deviation::kOtherBias:
      fault.describe = [](comm::LaunchDescriptor& d) { d.weight_bias = 1.0f; };
      return s;
    case Deviation::kOtherScaling:
      fault.describe = [](comm::LaunchDescriptor& d) { d.routed_scaling_factor = 2.0f; };
      return s;
    case Deviation::kOtherOp:
      fault.describe = [](comm::LaunchDescriptor& d) { d.op = comm::Op::kFinalize; };
      fault.body = RunBody<SimtEnvironment, OneShot, Finalize, 1>;
      return s;
    case Deviation::kOtherExchange:
      fault.describe = [](comm::LaunchDescriptor& d) { d.protocol = comm::Protocol::kTwoShot; };
      fault.body = RunBody<SimtEnvironment, TwoShot, Plain, 1>;
      return s;
    case Deviation::kBadIndex:
      s.source = Source::kFinalize;
      fault.index_out_of_range = true;
      return s;
    case Deviation::kStaleMailbox:
      s.residual_chain = false;
      s.reset_before = 0;
      fault.stale_mailbox = true;
      return s;
    case Deviation::kForeignHeader:
      fault.foreign_header = true;
      return s;
    case Deviation::kSentinelPayload:
      s.payload = Payload::kSentinel;
      return s;
    case Deviation::kEpochWraps:
      s.first_epoch = 0xFFFFFFFCu;
      s.tokens = {2, 1, 1, 2, 0, 1};
      return s;
    case Deviation::kReplaysAlone:
      fault.alone = true;
      return s;
    case Deviation::kFailsTwice:
      s.source = Source::kFinalize;
      fault.tokens = s.tokens[static_cast<size_t>(launch)] == 2 ? 1 : 2;
      fault.fails_again = true;
      return s;
    case Deviation::kStops:
      fault.stops = true;
      return s;
    case Deviation::kTwoLaunches:
    case Deviation::kBreaksPromise:
      fault.overlaps = true;
      fault.second_stream = plan.deviation == Deviation::kTwoLaunches;
      // The counters are of two launches; each ends, but only when it has waited for others for a
      // thousand looks.
      s.limits.ticks = 3000;
      s.end_ns = 12000 * kMs;
      return s;
    default:
      std::fprintf(stderr, "the simulator has no fault plan %s\n", plan.name.c_str());
      std::abort();
  }
}

Scenario ScenarioOf(const char* plan, int rank, int launch) {
  for (const FaultPlan& known : FaultPlans()) {
    if (known.name == plan) return ScenarioOf(known, rank, launch);
  }
  std::fprintf(stderr, "there is no fault plan %s\n", plan);
  std::abort();
}

}  // namespace stoker::testing::simt
