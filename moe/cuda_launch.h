// One launch of a kernel of the table: its parameters, shape and co-residency. For the host API of
// the fused ops (moe/fused_cuda.h), which checks the arguments first.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "comm/cuda_communicator.h"
#include "comm/launch_policy.h"
#include "moe/arguments.h"
#include "moe/launch_options.h"

namespace stoker::moe {

struct KernelLaunch {
  Shape shape;              // what the kernel exchanges
  int32_t call_tokens = 0;  // of the call; more than the shape's where NCCL moves the rows
  comm::LaunchDescriptor descriptor;  // of the call
  // The kernel's row of the table.
  comm::Op op;
  comm::Protocol exchange;
  const void* producer = nullptr;  // its parameters (moe/kernel_params.h), borrowed for the call
  const void* epilogue = nullptr;
};

absl::Status Launch(comm::CudaCommunicator& communicator, const KernelLaunch& work,
                    const LaunchOptions& options, cudaStream_t stream);

}  // namespace stoker::moe
