#include "comm/nccl_library.h"

#include <dlfcn.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/nccl_status.h"
#include "base/status.h"

namespace stoker::comm {
namespace {

static_assert(static_cast<int>(NcclResult::kSuccess) == ncclSuccess &&
              static_cast<int>(NcclResult::kUnhandledCudaError) == ncclUnhandledCudaError &&
              static_cast<int>(NcclResult::kSystemError) == ncclSystemError &&
              static_cast<int>(NcclResult::kInternalError) == ncclInternalError &&
              static_cast<int>(NcclResult::kInvalidArgument) == ncclInvalidArgument &&
              static_cast<int>(NcclResult::kInvalidUsage) == ncclInvalidUsage &&
              static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError &&
              static_cast<int>(NcclResult::kInProgress) == ncclInProgress);

constexpr char kSoname[] = "libnccl.so.2";

std::string VersionName(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

template <class Function>
absl::Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the NCCL of this process has no function ", name));
}

}  // namespace

absl::StatusOr<const NcclLibrary*> NcclLibrary::Open(const std::string& name) {
  // First what is loaded: two NCCLs in one process would not know of each other.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return absl::UnavailableError(absl::StrCat(
        "NCCL is not there: ", name, " is neither loaded in this process nor found (",
        why == nullptr ? "" : why,
        "). Install NCCL (torch for CUDA brings it), or name its folder in LD_LIBRARY_PATH"));
  }
  std::unique_ptr<NcclLibrary> nccl(new NcclLibrary());
  decltype(&ncclGetVersion) get_version = nullptr;
  STOKER_RETURN_IF_ERROR(Find(library, "ncclGetVersion", get_version));
  STOKER_RETURN_IF_ERROR(
      NcclStatus(static_cast<NcclResult>(get_version(&nccl->version_)), "ncclGetVersion", ""));
  if (nccl->version_ < kOldest || nccl->version_ / 10000 != NCCL_MAJOR) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NCCL of this process is ", VersionName(nccl->version_), "; ",
                     VersionName(kOldest), " or a later 2.x is needed"));
  }
  STOKER_RETURN_IF_ERROR(Find(library, "ncclGetUniqueId", nccl->get_unique_id));
  STOKER_RETURN_IF_ERROR(Find(library, "ncclCommInitRankConfig", nccl->comm_init_rank_config));
  STOKER_RETURN_IF_ERROR(Find(library, "ncclCommGetAsyncError", nccl->comm_get_async_error));
  STOKER_RETURN_IF_ERROR(Find(library, "ncclCommAbort", nccl->comm_abort));
  STOKER_RETURN_IF_ERROR(Find(library, "ncclAllReduce", nccl->all_reduce));
  STOKER_RETURN_IF_ERROR(Find(library, "ncclGetLastError", nccl->get_last_error));
  return nccl.release();  // lives as long as the process
}

absl::StatusOr<const NcclLibrary*> NcclLibrary::Get() {
  static const auto* found = new absl::StatusOr<const NcclLibrary*>(Open(kSoname));
  return *found;
}

}  // namespace stoker::comm
