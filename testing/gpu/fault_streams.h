// Fault plans on one GPU, ranks as streams of this process: a thread a rank.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "testing/faults/plans.h"
#include "testing/gpu/fault_member.h"

namespace stoker::testing {

// OK: what the plan says came of it, on every rank. Kernels must not be loaded lazily
// (CUDA_MODULE_LOADING=EAGER): one that is may wait for one that waits for it.
absl::Status RunOnGpuStreams(const FaultPlan& plan, uint64_t seed, const FaultKernels* kernels);

}  // namespace stoker::testing
