// Fault plans on CPU ranks, a process each.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "testing/faults/plans.h"

namespace stoker::testing {

// Forks the ranks from the caller, which must have no other threads. OK: what the plan says came of
// it, on every rank. At most two minutes.
absl::Status RunOnCpuRanks(const FaultPlan& plan, uint64_t seed);

}  // namespace stoker::testing
