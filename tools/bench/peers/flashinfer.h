// FlashInfer's kernels as its installed package ships them, launched on a FlashInferWorkspace. They
// have no time limit: if a launch hangs, only the end of the process ends it.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "moe/arguments.h"
#include "tools/bench/peers/flashinfer_workspace.h"

namespace stoker::bench {

const char* FlashInferVersion();

// The fused finalize. bf16 or fp16, weights of T, weight_bias 0 or 1; asynchronous.
absl::Status FlashInferFinalize(const FlashInferWorkspace& workspace, int rank,
                                const moe::Shape& shape, const moe::FinalizeArguments& finalize,
                                const moe::NormArguments& norm, bool programmatic,
                                cudaStream_t stream);

// All-reduce of `input` ([tokens, H] of T) with residual and RMSNorm, FP32 sums; asynchronous.
absl::Status FlashInferAllReduce(const FlashInferWorkspace& workspace, int rank, bool one_shot,
                                 const moe::Shape& shape, const void* input,
                                 const moe::NormArguments& norm, bool programmatic,
                                 cudaStream_t stream);

}  // namespace stoker::bench
