#include "base/nccl_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace stoker {
namespace {

const char* Name(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return "ncclSuccess";
    case NcclResult::kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case NcclResult::kSystemError:
      return "ncclSystemError";
    case NcclResult::kInternalError:
      return "ncclInternalError";
    case NcclResult::kInvalidArgument:
      return "ncclInvalidArgument";
    case NcclResult::kInvalidUsage:
      return "ncclInvalidUsage";
    case NcclResult::kRemoteError:
      return "ncclRemoteError";
    case NcclResult::kInProgress:
      return "ncclInProgress";
  }
  return "an unknown NCCL result";
}

}  // namespace

absl::Status NcclStatus(NcclResult result, absl::string_view call, absl::string_view detail) {
  if (result == NcclResult::kSuccess) return absl::OkStatus();
  const std::string message = detail.empty()
                                  ? absl::StrCat(call, ": ", Name(result))
                                  : absl::StrCat(call, ": ", Name(result), " (", detail, ")");
  switch (result) {
    case NcclResult::kSystemError:
    case NcclResult::kRemoteError:
      return absl::UnavailableError(message);
    case NcclResult::kInvalidArgument:
      return absl::InvalidArgumentError(message);
    case NcclResult::kInvalidUsage:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace stoker
