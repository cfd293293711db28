// Launches for the tests of CPU members: every rank sends its rank number plus one, and each result
// is checked against the sum. A launch that fails must have asked for NaN.
#pragma once

#include <algorithm>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/cpu_communicator.h"
#include "comm/cpu_exchange.h"
#include "comm/wire_type.h"

namespace stoker::comm {

struct LaunchHooks {
  std::function<void(int token)> producing = [](int) {};
  std::function<void(int token)> consuming = [](int) {};
};

inline absl::Status LaunchAndCheck(CpuCommunicator& communicator, int tokens,
                                   const LaunchHooks& hooks = {}) {
  constexpr int kPackets = 3;
  const int world = communicator.plan().world;
  const uint32_t pair =
      Pack<Bf16>(communicator.plan().rank + 1.0f, communicator.plan().rank + 1.0f);
  const int sum_of_ranks = world * (world + 1) / 2;
  const auto expected = static_cast<float>(sum_of_ranks);
  int right = 0;
  bool filled = false;
  const auto produce = [&](int token, Packet* row, uint64_t*) {
    hooks.producing(token);
    std::fill_n(row, kPackets, Packet{{pair, pair, pair, pair}});
    return true;
  };
  const auto consume = [&](int token, const float* sum) {
    hooks.consuming(token);
    right +=
        std::count(sum, sum + kPackets * kPacketElements, expected) == kPackets * kPacketElements;
  };
  LaunchDescriptor descriptor{};
  descriptor.op = Op::kPlain;
  descriptor.wire_type = WireType::kBf16;
  descriptor.hidden = kPackets * kPacketElements;
  descriptor.generation = communicator.generation().value();
  const absl::Status status = RunOneShot(communicator, {.descriptor = descriptor,
                                                        .tokens = tokens,
                                                        .packets = kPackets,
                                                        .produce = produce,
                                                        .consume = consume,
                                                        .fill_nan = [&] { filled = true; }});
  if (status.ok() && (right != tokens || filled)) {
    return absl::DataLossError(absl::StrCat("OK, but ", right, " of ", tokens, " rows are right"));
  }
  if (!status.ok() && right > 0 && !filled) {
    return absl::DataLossError(absl::StrCat("finite rows after ", status.ToString()));
  }
  return status;
}

}  // namespace stoker::comm
