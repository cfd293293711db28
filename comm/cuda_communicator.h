// The GPU member of a group: its workspace, the mappings of its peers' workspaces, its health page.
//
// Typical use, collective in every rank:
//   auto communicator = CudaCommunicator::Create(options, cuda_options, exchange);
//   moe::MoeFinalizeAllReduceRmsNorm(**communicator, ...);  // any number, ordered on the device
//   (*communicator)->Health();                              // after a synchronise, or watching
//   (*communicator)->Close(exchange, timeout);
//
// Ownership: it owns its device memory (cudaMalloc, so that CUDA IPC can export it) and mappings,
// and must outlive every launch on it and every graph that captured one. Close frees them once no
// peer can touch them any more. Threads: Health and Abort may be called from any thread at any
// time. Everything else: one thread at a time. Errors: kUnavailable without a GPU or peer access,
// kResourceExhausted without memory, kFailedPrecondition after Close or when ranks disagree; after
// a device-side failure every launch returns the failure until Reset.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/exchange_params.h"
#include "comm/group.h"
#include "comm/health.h"
#include "comm/launch_policy.h"
#include "comm/lifecycle.h"
#include "comm/nccl_all_reduce.h"
#include "comm/rank_exchange.h"
#include "comm/termination.h"

namespace stoker::comm {

struct CudaOptions {
  int device = -1;  // CUDA ordinal; -1: the current device
  // SMs that a launch may use; 0: all of the device, shared evenly among the group's ranks on it.
  int sm_budget = 0;
};

class CudaCommunicator {
 public:
  static absl::StatusOr<std::unique_ptr<CudaCommunicator>> Create(const GroupOptions& options,
                                                                  const CudaOptions& cuda,
                                                                  RankExchange& exchange);
  // Without Close: stops the group, so that nobody waits for this rank, and waits for its launches.
  ~CudaCommunicator();
  CudaCommunicator(const CudaCommunicator&) = delete;
  CudaCommunicator& operator=(const CudaCommunicator&) = delete;

  const GroupPlan& plan() const { return plan_; }
  // FailedPrecondition in a child made by fork (comm/lifecycle.h).
  absl::Status CheckProcess() const { return lifecycle_.CheckProcess(); }
  const Placement& placement() const { return placement_; }
  const Wire& wire() const { return wire_; }
  int device() const { return device_; }
  Generation generation() const { return generation_; }

  // The first failure that any rank of the group reported, or what NCCL has noticed, or OK. A read
  // of host memory; where the group has NCCL, a failure also releases what waits in it.
  absl::Status Health() const;
  const HealthPage& health_page() const { return *health_.page(); }

  // Changes the deadline of launches from now on, captured graphs included.
  absl::Status SetTimeout(absl::Duration timeout);

  // Releases every launch of the group that waits, on all ranks, within a second; their outputs are
  // NaN. Does not wait for them.
  absl::Status Abort();

  // Collective: brings a failed group back. All ranks stop, drain, wipe and go on with the next
  // generation. Captured graphs stay usable, but for those with calls through NCCL. An error names
  // who is missing and ends the group: every launch fails from then on. Close it.
  absl::Status Reset(RankExchange& exchange, absl::Duration timeout);

  // Collective, idempotent, bounded. Waits for this rank's launches, which are stopped once the
  // time is over, and for the peers; a peer that does not
  // come is named, and what it may still touch is then left allocated.
  absl::Status Close(RankExchange& exchange, absl::Duration timeout);

  // For the launch code in moe/: the group's part of the kernel parameters.
  ExchangeParams Params() const;
  // Refuses a launch that is not ordered after the last one (kFailedPrecondition), or any after a
  // failure or Close. Call right before launching, and AfterLaunch right after.
  absl::Status BeforeLaunch(cudaStream_t stream);
  absl::Status AfterLaunch(cudaStream_t stream);

  // For moe/nccl_path.cc, between two launches of a call: comm/nccl_all_reduce.h. InvalidArgument
  // for a group without NCCL.
  absl::Status SumWithNccl(const void* input, void* output, int64_t elements, WireType type,
                           cudaStream_t stream);

 private:
  struct Address;
  CudaCommunicator() = default;
  absl::Status ChooseDevice(const CudaOptions& options);
  absl::Status Allocate();
  absl::Status Connect(RankExchange& exchange, absl::Duration timeout);
  absl::Status MapPeer(int peer, const Address& theirs, uint64_t own_process);
  absl::Status WriteToPeers();
  absl::Status ReadWhatPeersWrote();
  absl::Status CheckPeers();
  absl::Status Wipe(Epoch first, Generation generation);
  absl::Status StopAll() const;
  absl::Status ReportAndStopAll();
  absl::Status AddNccl(bool optional, RankExchange& exchange, absl::Duration timeout);
  absl::Status ConnectNccl(RankExchange& exchange, absl::Duration timeout);
  absl::Status TrySum(absl::Duration timeout);
  absl::Status WipeTogether(RankExchange& exchange, absl::Duration timeout);
  absl::Status Synchronise(absl::Duration timeout);
  void Free(bool own_too);

  // Where a launch goes, by identities that are not reused, so that a stream which its owner has
  // destroyed is never touched.
  struct Place {
    unsigned long long stream = 0;   // cudaStreamGetId; in a capture the handle
    unsigned long long capture = 0;  // of the capture that the stream is in; 0: none
  };
  static absl::StatusOr<Place> PlaceOf(cudaStream_t stream);
  absl::StatusOr<bool> LaunchInFlight();

  GroupPlan plan_;
  Placement placement_;
  Wire wire_ = kNvlink4Wire;
  int device_ = 0;
  Generation generation_;
  class Health health_;
  void* health_on_device_ = nullptr;
  void* workspace_[kWorldMax] = {};
  bool opened_[kWorldMax] = {};  // by cudaIpcOpenMemHandle
  cudaStream_t control_stream_ = nullptr;
  Place last_;
  unsigned long long last_eager_stream_ = 0;
  uint32_t eager_launches_ = 0;          // of this generation
  bool gpu_shared_ = false;              // by two ranks of the group
  std::unique_ptr<NcclAllReduce> nccl_;  // set by Create only, so that Health may read it
  mutable Lifecycle lifecycle_;
  std::optional<StopAtTermination> at_termination_;  // while connected
};

}  // namespace stoker::comm
