// Runs one function on N ranks, each in a process of its own, and never hangs.
//
// The processes are forked from the caller, which must have no other threads. Each dies with its
// parent (PR_SET_PDEATHSIG) and is a process group of its own, so that what it forks is killed with
// it. When the deadline passes every rank that still runs is killed and reported as hung; on every
// return all ranks have been reaped.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace stoker::testing {

struct RankOutcome {
  enum class Kind { kReturned, kExited, kSignalled, kHung };
  Kind kind = Kind::kHung;
  absl::Status status;  // what the function returned, if it did; else what happened
};

std::vector<RankOutcome> RunRankProcesses(int world, absl::Duration timeout,
                                          const std::function<absl::Status(int rank)>& rank_main);

// OK if every rank returned OK; otherwise every rank that did not, by name.
absl::Status AllReturnedOk(const std::vector<RankOutcome>& outcomes);

}  // namespace stoker::testing
