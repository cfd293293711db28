// Finalize alone on a GPU: what this rank contributes to each token (moe/arguments.h), written as
// rows of T, with no peers. The first half of a tail whose all-reduce something else does, and all
// of it where there is one rank and no norm. The bits are those that the fused tails push.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "moe/arguments.h"

namespace stoker::moe {

// `output` is [tokens, H] of T and overlaps no input. Device pointers of the current device, to
// which `stream` belongs. Asynchronous, one kernel launch (none without tokens), safe to capture in
// a CUDA graph, from any thread. A token with an index that is not below row_count becomes NaN
// throughout. With `programmatic_launch` it may start before its predecessor in the stream ends,
// and waits for it on the device; the launch behind it may start when all rows are stored.
// Errors: InvalidArgument (moe/validate.h), or what CUDA says of the launch.
absl::Status MoeFinalize(const Shape& shape, const FinalizeArguments& finalize, void* output,
                         bool programmatic_launch, cudaStream_t stream);

}  // namespace stoker::moe
