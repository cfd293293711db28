// `stoker doctor --faults`: every fault plan that can happen on this machine.
#pragma once

namespace stoker::command {

// Exit status: 0 all plans gave what docs/fault_plans.md says; 1 one did not; 2 refused, because
// the GPU has other processes, whose launches would be in the way and which would have to wait. The
// caller must have no other threads.
int RunDoctorFaults();

}  // namespace stoker::command
