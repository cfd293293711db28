// Calls of more tokens than the workspace holds: NCCL moves the rows, and what is around them is
// ours. Which calls come here follows from the plan and the number of tokens alone.
//
// Finalize writes this rank's rows to norm_out, NCCL sums them there, and a last kernel adds the
// residual and normalises; there is no other buffer. NCCL sums in an order of its own and rounds to
// T on the way: the bits differ from those of the fused kernels, all ranks still have the same
// ones.
//
// Before NCCL a launch without rows compares the headers, and the last launch does so again: what
// differs, and a rank that does not come, is reported as for every launch, by its name and within
// the deadline, and all outputs are NaN. A rank that waits inside NCCL is released by the check of
// the group's health (CudaCommunicator::Health) once a failure has been reported, by Abort and by
// Close. No launch option but the site has a meaning here.
//
// A graph that captured such a call holds NCCL's communicator: after a failure it must be captured
// anew, because Reset connects another one.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "comm/cuda_communicator.h"
#include "moe/arguments.h"

namespace stoker::moe {

absl::Status FinalizeThroughNccl(comm::CudaCommunicator& communicator, const Shape& shape,
                                 comm::LaunchDescriptor descriptor,
                                 const FinalizeArguments& finalize, const NormArguments& norm,
                                 cudaStream_t stream);
absl::Status SumAndNormThroughNccl(comm::CudaCommunicator& communicator, const Shape& shape,
                                   comm::LaunchDescriptor descriptor, const void* input,
                                   const NormArguments& norm, cudaStream_t stream);
absl::Status SumThroughNccl(comm::CudaCommunicator& communicator, const Shape& shape,
                            comm::LaunchDescriptor descriptor, const void* input, void* output,
                            cudaStream_t stream);

}  // namespace stoker::moe
