// The one-shot exchange on a CPU rank: the protocol of comm/one_shot.h with one thread a rank.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "comm/cpu_communicator.h"
#include "comm/protocol.h"

namespace stoker::comm {

struct CpuLaunch {
  LaunchDescriptor descriptor;
  int32_t tokens = 0;
  int32_t packets = 0;  // per row
  // This rank's row of a token, rounded to the wire type; false if its inputs are bad (the failure
  // is then reported with `bad_detail`, as FailureRecord::detail).
  absl::FunctionRef<bool(int token, Packet* row, uint64_t* bad_detail)> produce;
  // The FP32 sum over ranks of a token.
  absl::FunctionRef<void(int token, const float* sum)> consume;
  // All outputs of all tokens become NaN.
  absl::FunctionRef<void()> fill_nan;
};

// Collective and synchronous. An error is the group's failure; the outputs are then NaN.
absl::Status RunOneShot(CpuCommunicator& communicator, const CpuLaunch& launch);

}  // namespace stoker::comm
