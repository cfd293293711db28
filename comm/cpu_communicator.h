// The CPU member of a group: its workspace in POSIX shared memory (0600), the mappings of its
// peers', the health page. CPU ranks are a world for tests and demonstrations and speak the
// protocol of comm/protocol.h like the GPU's.
//
// Ranks are processes or threads. Threads: Health and Abort from any thread at any time; launches
// may come from any thread, but two at once are refused by the overlap ticket (a failure of the
// group). Errors are those of CudaCommunicator.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/shared_memory.h"
#include "comm/group.h"
#include "comm/health.h"
#include "comm/one_shot_params.h"
#include "comm/rank_exchange.h"

namespace stoker::comm {

class CpuCommunicator {
 public:
  static absl::StatusOr<std::unique_ptr<CpuCommunicator>> Create(const GroupOptions& options,
                                                                 RankExchange& exchange);

  const GroupPlan& plan() const { return plan_; }
  uint32_t generation() const { return generation_; }
  // The first failure that any rank of the group reported, or OK.
  absl::Status Health() const { return health_.Check(); }
  const HealthPage& health_page() const { return *health_.page(); }
  absl::Status SetTimeout(absl::Duration timeout);
  // Releases every launch of the group that waits; their outputs are NaN.
  absl::Status Abort();
  // Collective: after a failure, on all ranks, with no launch in flight on this one.
  absl::Status Reset(RankExchange& exchange, absl::Duration timeout);
  // Collective, idempotent, bounded.
  absl::Status Close(RankExchange& exchange, absl::Duration timeout);
  bool closed() const { return closed_; }

  // The group's part of a launch's parameters.
  OneShotParams Params() const;

 private:
  CpuCommunicator() = default;
  void Wipe(uint32_t first_epoch, uint32_t generation);

  GroupPlan plan_;
  uint32_t generation_ = 0;
  class Health health_;
  SharedMemory workspace_[kWorldMax];
  bool closed_ = false;
};

}  // namespace stoker::comm
