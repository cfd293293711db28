// One rank of a group in a fault plan, whatever it runs on: what the script
// (testing/faults/script.h) asks of a world of real ranks. A member launches, waits, and says what
// came out.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/health_page.h"
#include "comm/rank_exchange.h"
#include "testing/inputs.h"

namespace stoker::testing {

// What is done to a launch from within.
enum class FaultHook {
  kNone,
  kPausesInside,  // half of its packets are pushed `pause` after the others
  kPausesAtEnd,   // it ends `pause` after all was exchanged
  kDies,          // it ends for good with half of its packets pushed
  kTorn,          // the words of a packet are stored one by one
  kDelayed,       // one packet of each row is stored `pause` after the others
  kReordered,     // the last packet and the last word first
};

struct FaultLaunch {
  InputOptions inputs;
  uint32_t site = 0;
  bool plain = false;      // a plain all-reduce of the first rows instead of a finalize
  int sentinel_rank = -1;  // whose rows have every second word equal to the sentinel
  bool bad_index = false;  // the first index of this rank is out of range
  bool two_shot = false;
  bool graph = false;  // it will be replayed from one
  FaultHook hook = FaultHook::kNone;
  absl::Duration pause = absl::ZeroDuration();
};

// kMixed: each element is right or NaN. What a refused launch leaves counts as NaN.
enum class FaultResult { kRight, kNan, kMixed, kOther };

// What a launch reads on this rank, and what it must give.
struct FaultData {
  Inputs inputs;
  moe::NormResult expected;
};
FaultData MakeFaultData(const FaultLaunch& launch, int rank, int world);
FaultResult JudgeOutputs(const moe::NormResult& expected, const moe::NormResult& actual);

struct FaultEnd {
  absl::Status status;  // of the launch, or of the group's health once it has ended
  FaultResult result = FaultResult::kOther;
  absl::Duration time = absl::ZeroDuration();  // from launching to the end
};

class FaultMember {
 public:
  virtual ~FaultMember() = default;

  virtual comm::RankExchange& exchange() = 0;
  virtual const comm::HealthPage& page() const = 0;
  virtual absl::Status Health() const = 0;
  virtual absl::Status SetTimeout(absl::Duration timeout) = 0;
  virtual absl::Status Abort() = 0;
  virtual absl::Status Reset(absl::Duration timeout) = 0;
  virtual absl::Status Close(absl::Duration timeout) = 0;

  // Makes inputs and outputs; the handle is good for any number of launches. Before any launch of
  // the plan, as it may wait for the device.
  virtual absl::StatusOr<int> Prepare(const FaultLaunch& launch) = 0;
  // Launches and waits for the end.
  virtual FaultEnd Run(int launch) = 0;
  // Launches a graph that was captured with this launch, and waits.
  virtual FaultEnd Replay(int launch) = 0;
  // Two launches at once, past whatever refuses that.
  virtual FaultEnd RunTwice(int launch) = 0;
  // A launch, and while it runs one on another stream, which must be refused.
  virtual FaultEnd RunWithSecondStream(int launch) = 0;
  // A launch that lets others start early, a kernel that does not wait for it, and another launch.
  virtual FaultEnd RunWithBrokenPromise(int launch) = 0;

  // Rubbish in the whole mailbox of this rank.
  virtual absl::Status SpoilMailbox() = 0;
  // A header of `source` with this epoch in both slots of this rank.
  virtual absl::Status SpoilHeader(int source, uint32_t epoch) = 0;

  // Where a rank is a process: ends it after a launch with kDies. Elsewhere it returns.
  virtual void EndProcess() = 0;
  virtual bool is_process() const = 0;
  virtual bool in_step() const { return true; }  // false: ranks are time-sliced
};

}  // namespace stoker::testing
