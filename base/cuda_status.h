// The one place where a CUDA runtime result becomes a Status.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace stoker {

// OK for cudaSuccess; otherwise "call: name (description)". Out of memory is kResourceExhausted, a
// missing device or driver kUnavailable, a bad argument kInvalidArgument, everything else
// kInternal.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

}  // namespace stoker

#define STOKER_CUDA(call) STOKER_RETURN_IF_ERROR(::stoker::CudaStatus((call), #call))
