// A rank of a fault plan on a GPU: a communicator, a stream, and, in test builds, the kernels that
// misbehave.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "testing/faults/member.h"

namespace stoker::testing {

// testing/gpu/fault_hooks.h makes them.
struct FaultKernels {
  const void* (*kernel)(FaultHook hook);          // with the shipped kernel's parameters
  cudaError_t (*set_pause)(uint64_t ns);          // of the next launch of such a kernel
  cudaError_t (*impatient)(cudaStream_t stream);  // a kernel that breaks the promise
};

// Takes over the exchange. `process`: the rank is a process of its own, which EndProcess ends.
// Without kernels a launch with a hook is an error.
absl::StatusOr<std::unique_ptr<FaultMember>> MakeGpuFaultMember(
    const comm::GroupOptions& options, std::unique_ptr<comm::RankExchange> exchange, bool process,
    const FaultKernels* kernels);

}  // namespace stoker::testing
