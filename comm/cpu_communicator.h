// The CPU member of a group: its workspace in POSIX shared memory (0600), the mappings of its
// peers', the health page. CPU ranks are a world for tests and demonstrations and speak the
// protocol of comm/protocol.h like the GPU's.
//
// Ranks are processes or threads. Threads: Health and Abort from any thread at any time; launches
// may come from any thread, but two at once are refused by the overlap ticket (a failure of the
// group), and so is one that meets a Reset or Close (comm/lifecycle.h). SetTimeout, Reset and Close
// one at a time. Errors are those of CudaCommunicator.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/shared_memory.h"
#include "comm/exchange_params.h"
#include "comm/group.h"
#include "comm/health.h"
#include "comm/lifecycle.h"
#include "comm/rank_exchange.h"
#include "comm/termination.h"

namespace stoker::comm {

class CpuCommunicator {
 public:
  static absl::StatusOr<std::unique_ptr<CpuCommunicator>> Create(const GroupOptions& options,
                                                                 RankExchange& exchange);

  // Without Close: stops the group, so that nobody waits for this rank. No launch of it may run.
  ~CpuCommunicator();

  const GroupPlan& plan() const { return plan_; }
  // FailedPrecondition in a child made by fork (comm/lifecycle.h).
  absl::Status CheckProcess() const { return lifecycle_.CheckProcess(); }
  Generation generation() const { return generation_; }
  // The first failure that any rank of the group reported, or why a reset failed, or OK.
  absl::Status Health() const;
  const HealthPage& health_page() const { return *health_.page(); }
  absl::Status SetTimeout(absl::Duration timeout);
  // Releases every launch of the group that waits; their outputs are NaN.
  absl::Status Abort();
  // Collective, on all ranks. Releases launches that wait in other threads and waits for them. An
  // error names who is missing and ends the group: every launch fails from then on.
  absl::Status Reset(RankExchange& exchange, absl::Duration timeout);
  // Collective, idempotent, bounded. Launches in other threads are waited for, and released if a
  // peer or the time is gone. One that still runs then keeps the memory, and that is the error.
  absl::Status Close(RankExchange& exchange, absl::Duration timeout);

  // For comm/cpu_exchange.cc: the group's part of a launch's parameters, good between BeginLaunch
  // and EndLaunch.
  absl::Status BeginLaunch() { return lifecycle_.BeginLaunch(); }
  void EndLaunch() { lifecycle_.EndLaunch(); }
  ExchangeParams Params() const;

 private:
  CpuCommunicator() = default;
  absl::Status Connect(RankExchange& exchange, absl::Duration timeout);
  void RemoveNames() const;
  absl::Status StopAll();
  absl::Status WipeTogether(RankExchange& exchange, absl::Duration timeout);
  void Wipe(Epoch first, Generation generation);

  GroupPlan plan_;
  std::atomic<Generation> generation_;
  class Health health_;
  SharedMemory workspace_[kWorldMax];
  Lifecycle lifecycle_;
  std::optional<StopAtTermination> at_termination_;  // while connected
};

}  // namespace stoker::comm
