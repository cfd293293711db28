// Fault plans (testing/faults/plans.h) on the simulated machine.
#pragma once

#include "testing/faults/plans.h"
#include "testing/simt/world.h"

namespace stoker::testing::simt {

// The world in which `rank` deviates in `launch`, and what must come of it. The plan must run in
// the simulator.
Scenario ScenarioOf(const FaultPlan& plan, int rank, int launch);
// The same by the plan's name, for mutants.
Scenario ScenarioOf(const char* plan, int rank, int launch);

}  // namespace stoker::testing::simt
