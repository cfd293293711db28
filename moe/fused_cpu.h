// The fused tails of a MoE layer on CPU ranks: host pointers, synchronous, the bits of
// moe/reference.h. Formulas and errors are those of moe/fused_cuda.h; of the launch options only
// `site` means anything here.
#pragma once

#include "absl/status/status.h"
#include "comm/cpu_communicator.h"
#include "moe/arguments.h"
#include "moe/launch_options.h"

namespace stoker::moe {

absl::Status MoeFinalizeAllReduceRmsNorm(comm::CpuCommunicator& communicator, const Shape& shape,
                                         const FinalizeArguments& finalize,
                                         const NormArguments& norm, const LaunchOptions& options);

absl::Status MoeReduceAllReduceRmsNorm(comm::CpuCommunicator& communicator, const Shape& shape,
                                       const ReductionArguments& reduction,
                                       const NormArguments& norm, const LaunchOptions& options);

absl::Status AllReduceRmsNorm(comm::CpuCommunicator& communicator, const Shape& shape,
                              const void* input, const NormArguments& norm,
                              const LaunchOptions& options);

// output = the sum of all ranks' inputs ([tokens, H] of T), rounded once; it may be `input` itself.
absl::Status AllReduce(comm::CpuCommunicator& communicator, const Shape& shape, const void* input,
                       void* output, const LaunchOptions& options);

}  // namespace stoker::moe
