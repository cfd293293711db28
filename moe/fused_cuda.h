// The fused tails of a MoE layer on GPUs: one kernel launch each, safe to capture in a CUDA graph.
// The formulas are in moe/arguments.h; all pointers are device pointers of the communicator's
// device.
//
// Collective: every rank launches the same calls with the same shapes in the same order; what
// differs is reported by CudaCommunicator::Health. Asynchronous on `stream`; the outputs are valid,
// or NaN throughout, once the launch has completed. Threads: one at a time per communicator.
// A call of more tokens than the workspace holds goes through NCCL where the group has it
// (moe/nccl_path.h). Errors: InvalidArgument (moe/validate.h); FailedPrecondition for a launch that
// is not ordered after the communicator's last one; the group's failure, if it has one, until
// Reset.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "comm/cuda_communicator.h"
#include "comm/launch_policy.h"
#include "moe/arguments.h"
#include "moe/launch_options.h"

namespace stoker::moe {

absl::Status MoeFinalizeAllReduceRmsNorm(comm::CudaCommunicator& communicator, const Shape& shape,
                                         const FinalizeArguments& finalize,
                                         const NormArguments& norm, const LaunchOptions& options,
                                         cudaStream_t stream);

absl::Status MoeReduceAllReduceRmsNorm(comm::CudaCommunicator& communicator, const Shape& shape,
                                       const ReductionArguments& reduction,
                                       const NormArguments& norm, const LaunchOptions& options,
                                       cudaStream_t stream);

// All-reduce of `input` ([tokens, H] of T), residual and RMSNorm.
absl::Status AllReduceRmsNorm(comm::CudaCommunicator& communicator, const Shape& shape,
                              const void* input, const NormArguments& norm,
                              const LaunchOptions& options, cudaStream_t stream);

// output = the sum of all ranks' inputs ([tokens, H] of T), rounded once; it may be `input` itself.
absl::Status AllReduce(comm::CudaCommunicator& communicator, const Shape& shape, const void* input,
                       void* output, const LaunchOptions& options, cudaStream_t stream);

// The exchange and the shape that such a launch gets; for reports.
comm::Protocol ProtocolOf(const comm::CudaCommunicator& communicator, const Shape& shape,
                          const LaunchOptions& options);
comm::LaunchShape ShapeOf(const comm::CudaCommunicator& communicator, const Shape& shape,
                          const LaunchOptions& options);

}  // namespace stoker::moe
