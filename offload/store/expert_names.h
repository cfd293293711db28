// How architectures name the tensors of their experts: one table.
//
//   std::optional<ExpertTensorName> name = ParseExpertTensorName(
//       "model.layers.3.mlp.experts.17.gate_proj.weight_packed");
//
// Pure functions, thread-safe.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace stoker::offload {

struct ExpertTensorName {
  const char* architecture;
  int layer = 0;
  int expert = 0;
  int projection = 0;  // 0 gate, 1 up, 2 down
  std::string suffix;  // "weight_packed", "weight_scale", ...
};

// Nothing for a name that is not a tensor of an expert.
std::optional<ExpertTensorName> ParseExpertTensorName(absl::string_view name);

// The layouts of the table, for messages.
std::string SupportedExpertNames();

}  // namespace stoker::offload
