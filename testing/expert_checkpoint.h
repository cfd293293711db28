// Writes checkpoints for tests: compressed-tensors INT4 experts with Qwen3-MoE's names and random
// content, one safetensors file a layer.
//
//   STOKER_RETURN_IF_ERROR(WriteExpertCheckpoint(directory, {.layers = 2, .experts = 64}));
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace stoker::testing {

struct ExpertCheckpointOptions {
  int layers = 2;
  int experts = 8;
  int hidden = 256;
  int intermediate = 128;
  int group = 32;
  uint64_t seed = 1;
  // Written to the disk before it returns: a direct read of what is not is slow.
  bool durable = false;
};

absl::Status WriteExpertCheckpoint(const std::string& directory,
                                   const ExpertCheckpointOptions& options);

}  // namespace stoker::testing
