// Test-only builds of the finalize kernel (bf16, up to four ranks, one vector a thread) that
// misbehave from within, for fault plans. None is in the shipped table.
#pragma once

#include "testing/gpu/fault_member.h"

namespace stoker::testing {

const FaultKernels* TestBuildFaultKernels();

}  // namespace stoker::testing
