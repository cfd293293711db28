// Runs one function on N ranks, each in a process of its own, and never hangs.
//
//   const auto outcomes = RunRankProcesses(4, absl::Seconds(60), RankMain, RankOutput::kCollected);
//   EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
//
// The processes are forked from the caller, which must have no other threads. Each dies with its
// parent (PR_SET_PDEATHSIG). When the deadline passes every rank that still runs is killed and
// reported as hung. On every return all ranks, and whatever they forked, also into sessions of
// their own, have been killed and reaped; a process that even SIGKILL does not end within 10 s
// (it hangs in the kernel) is left behind and said to be so.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace stoker::testing {

enum class RankOutput {
  kInherited,  // the ranks write where the caller does
  kCollected,  // into RankOutcome::output
};

struct RankOutcome {
  enum class Kind { kReturned, kExited, kSignalled, kHung };
  Kind kind = Kind::kHung;
  absl::Status status;  // what the function returned, if it did; else what happened
  std::string output;   // the last 64 KiB of stdout and stderr together, if collected
};

std::vector<RankOutcome> RunRankProcesses(int world, absl::Duration timeout,
                                          const std::function<absl::Status(int rank)>& rank_main,
                                          RankOutput output = RankOutput::kInherited);

// OK if every rank returned OK; otherwise every rank that did not, by name, with the end of its
// output if that was collected.
absl::Status AllReturnedOk(const std::vector<RankOutcome>& outcomes);

}  // namespace stoker::testing
