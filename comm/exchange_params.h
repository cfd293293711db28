// What a launch knows about its group: the kernel parameters of comm/launch_frame.h.
// Plain data, filled by the host for each launch and never changed by the device.
#pragma once

#include <cstdint>

#include "comm/health_page.h"
#include "comm/protocol.h"

namespace stoker::comm {

struct ExchangeParams {
  void* workspace[kWorldMax];  // of every rank, as mapped here; [rank] is this rank's own
  RankHealth* health;          // this rank's part of the health page, as mapped here
  WorkspaceLayout layout;
  int32_t rank;
  int32_t tokens;
  int32_t packets;  // per row: hidden / 8
  uint32_t signature;
  uint32_t early_trigger;  // LaunchDependents right after the wait instead of after the last store
  LaunchEntry log;         // as the ring of the health page gets it, but for the epoch
};

// What every thread of a launch keeps at hand.
struct Launch {
  uint32_t epoch;
  bool failed;  // this thread waits no more and its values are NaN
};

}  // namespace stoker::comm
