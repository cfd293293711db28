// Delivers the packets of a rank's peers: a kernel on a few SMs that plays all of them, one launch
// ahead of the rank, so that the rank never waits. What the rank pushes to them stays where it
// lands.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "comm/exchange_params.h"

namespace stoker::bench {

inline constexpr int kFeederSms = 8;
// Every element of a peer's row or result, as bits of bf16, and a result's scale.
inline constexpr uint16_t kFedElement = 0x3C00;
inline constexpr float kFedScale = 0.25f;

struct Feed {
  comm::ExchangeParams group;  // of the rank that is fed, rank 0 (CudaCommunicator::Params)
  comm::Protocol protocol;
  int tokens;
  int packets;  // a row
  uint32_t signature;
};

// The packets of the next `launches` launches, of the first one at once and of each other one as
// soon as the launch before it has begun. The rank must be idle; asynchronous. Gives up, and lets
// the rank run into its own deadline, if a launch does not begin for a second.
absl::Status StartFeeding(const Feed& feed, int launches, cudaStream_t stream);

}  // namespace stoker::bench
