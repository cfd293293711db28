// Test-only builds of the finalize kernel (bf16, up to four ranks, one vector a thread) that
// misbehave from within, for fault plans. None is in the shipped table.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "testing/faults/member.h"

namespace stoker::testing {

// The kernel's host-side address, for LaunchOptions::kernel.
const void* FaultKernel(FaultHook hook);
// How long the next launch of such a kernel in this process pauses, all its threads together.
cudaError_t SetFaultPause(uint64_t ns);
// A kernel that is launched programmatically, lets the next one start and does not wait for the one
// before.
cudaError_t LaunchImpatient(cudaStream_t stream);

}  // namespace stoker::testing
