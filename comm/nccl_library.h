// NCCL as this process has it, found at run time: the library that is loaded already (torch's),
// else the one that the dynamic linker finds. Nothing of ours links or carries NCCL.
//
//   STOKER_ASSIGN_OR_RETURN(const NcclLibrary* nccl, NcclLibrary::Get());
//
// Immutable once opened; thread-safe. Never unloaded: NCCL has threads of its own.
// Errors: kUnavailable where there is no library, kFailedPrecondition for a version or a symbol
// that is missing; both name what was looked for.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

#include "absl/status/statusor.h"

namespace stoker::comm {

class NcclLibrary {
 public:
  // The oldest release whose communicators can be created without blocking and be configured as we
  // need it.
  static constexpr int kOldest = NCCL_VERSION(2, 18, 1);

  // Found once a process; the same answer afterwards.
  static absl::StatusOr<const NcclLibrary*> Get();
  // The library of that name or path.
  static absl::StatusOr<const NcclLibrary*> Open(const std::string& name);

  int version() const { return version_; }  // as NCCL counts: 22809 is 2.28.9

  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;

 private:
  NcclLibrary() = default;
  int version_ = 0;
};

}  // namespace stoker::comm
