// What the ranks of a group do in a fault plan, and the judgement of what came of it; for worlds of
// real ranks (CPU and GPU). The simulator has its own (testing/simt/fault_plans.h).
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/group.h"
#include "testing/faults/member.h"
#include "testing/faults/plans.h"

namespace stoker::testing {

// How patient a world has to be.
struct FaultPatience {
  absl::Duration deadline;  // of plans that end at it
  absl::Duration precise;   // of plans with a rank late by 0.9 of it
  absl::Duration slack;     // after the deadline, on the host's clock
  int launches_after;       // a reset
};

// Makes a member of the group; called again where a plan makes a second one.
using MakeFaultMember =
    std::function<absl::StatusOr<std::unique_ptr<FaultMember>>(const comm::GroupOptions& options)>;

// The group that a plan wants on this rank. `name` is the same on all ranks.
comm::GroupOptions FaultGroup(const FaultPlan& plan, const Fault& fault, int rank,
                              const std::string& name, const FaultPatience& patience);

// This rank's part. OK: everything came as the plan says. Bounded, whatever happens.
absl::Status RunFaultScript(const FaultPlan& plan, const Fault& fault, int rank,
                            const std::string& name, const FaultPatience& patience,
                            const MakeFaultMember& make);

}  // namespace stoker::testing
