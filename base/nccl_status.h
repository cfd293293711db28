// The one place where an NCCL result becomes a Status. By number, because NCCL's header is known to
// comm/nccl_* alone, which asserts that the numbers are its own.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace stoker {

// ncclResult_t.
enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// OK for kSuccess; otherwise "call: name (detail)". What the system or another rank did is
// kUnavailable, a bad argument kInvalidArgument, a usage that NCCL refuses (two ranks on one GPU)
// kFailedPrecondition, everything else kInternal. `detail` are NCCL's own words, or nothing.
absl::Status NcclStatus(NcclResult result, absl::string_view call, absl::string_view detail);

}  // namespace stoker
