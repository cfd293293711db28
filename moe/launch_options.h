// How a fused launch is placed; nothing here changes a result.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/launch_policy.h"
#include "comm/protocol.h"

namespace stoker::moe {

struct LaunchOptions {
  // The caller's integer for this call site (vLLM: the layer). Ranks that launch different sites in
  // one epoch are told so.
  uint32_t site = 0;
  // Launch with programmatic stream serialization: this launch may start before the previous kernel
  // of the stream has completed, and waits for it on the device (CUDA programming guide,
  // "Programmatic Dependent Launch").
  bool programmatic_launch = false;
  // Let the next programmatic launch of the stream start early. The caller promises that it
  // executes griddepcontrol.wait before it exits.
  bool early_trigger = false;
  // Instead of the launch policy's choices; for measuring. Co-residency is still enforced, and all
  // ranks must choose the same exchange. Two-shot needs more than two ranks.
  const comm::LaunchShape* shape = nullptr;
  std::optional<comm::Protocol> protocol = {};
  // Instead of the table's kernel, one with the same parameters; for tests of variants.
  const void* kernel = nullptr;
};

}  // namespace stoker::moe
