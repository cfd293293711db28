// Test-only builds of the finalize kernel (bf16, up to four ranks, two vectors a thread) with
// random delays, each with one memory qualifier of comm/cuda_environment.cuh weakened. Not the
// control words': the abort word is what ends every wait, so a build that may not see it could hang
// the GPU.
#pragma once

namespace stoker::testing {

struct WeakenedKernel {
  const char* what;
  const void* kernel;  // for LaunchOptions::kernel
};

// `count` of them.
const WeakenedKernel* WeakenedKernels(int* count);

}  // namespace stoker::testing
