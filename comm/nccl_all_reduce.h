// The NCCL side of a group: for calls of more tokens than the workspace holds.
//
// NCCL chooses the order in which it sums and rounds to the wire type on the way, so its bits are
// not those of the fused kernels (all ranks still get the same ones), and no NaN pattern is kept.
//
// Every wait is bounded: the set-up by its timeout, a call by its own; on the device a rank waits
// for its peers in NCCL's kernel until Abort. Threads: Check and Abort from any thread at any time;
// Sum from one thread at a time. Owns the NCCL communicator; the device it was created on must be
// current.
#pragma once

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/protocol.h"
#include "comm/rank_exchange.h"

struct ncclComm;

namespace stoker::comm {

class NcclLibrary;

class NcclAllReduce {
 public:
  // Not connected yet. `library` is never unloaded.
  NcclAllReduce(const NcclLibrary& library, int rank, int world)
      : library_(library), rank_(rank), world_(world) {}
  // In a child made by fork it leaves NCCL, which is the parent's, alone.
  ~NcclAllReduce() {
    if (getpid() == process_) Abort();
  }
  NcclAllReduce(const NcclAllReduce&) = delete;
  NcclAllReduce& operator=(const NcclAllReduce&) = delete;

  // Collective over `exchange`, at first and after Abort. An error on one rank is an error on all
  // and leaves it unconnected.
  absl::Status Connect(RankExchange& exchange, absl::Duration timeout);

  // output = the sum of all ranks' inputs, [elements] of the wire type, on `stream`; they may be
  // the same array. Can be captured. Returns when NCCL has queued it.
  absl::Status Sum(const void* input, void* output, int64_t elements, WireType type,
                   cudaStream_t stream);

  // What NCCL has noticed since it was connected, or OK; also after Abort.
  absl::Status Check() const;

  // Ends NCCL's kernels on this rank, whatever they wait for, and the communicator. Idempotent.
  void Abort();

 private:
  absl::StatusOr<std::string> Identity() const;
  absl::Status Init(const std::string& identity, absl::Duration timeout);
  absl::Status Await(int result, const char* call, absl::Duration timeout);
  // NCCL's state, or its error with its words. The mutex is held.
  absl::Status StateOf(int result, const char* call) const;

  const NcclLibrary& library_;
  const int rank_;
  const int world_;
  const pid_t process_ = getpid();
  mutable std::mutex mutex_;  // held for each call of NCCL, not while waiting
  ncclComm* comm_ = nullptr;
  mutable absl::Status noticed_;
};

}  // namespace stoker::comm
