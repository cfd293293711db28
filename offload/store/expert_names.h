// How architectures name and lay out the tensors of their experts: one table.
//
//   std::optional<ExpertTensorName> name = ParseExpertTensorName(
//       "model.layers.3.mlp.experts.17.gate_proj.weight_packed");
//
// A tensor holds one expert, or all of a layer stacked along its first dimension. Gate and up are
// two tensors or one. Pure functions, thread-safe.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace stoker::offload {

enum Projection { kProjectGate, kProjectUp, kProjectDown, kProjectGateUp, kProjections };

struct ExpertTensorName {
  static constexpr int kStacked = -1;

  const char* architecture;
  int layer = 0;
  int expert = 0;      // or kStacked
  int projection = 0;  // a Projection
  std::string suffix;  // "weight_packed", "weight_scale", ...
};

// Nothing for a name that is not a tensor of an expert.
std::optional<ExpertTensorName> ParseExpertTensorName(absl::string_view name);

// The layouts of the table, for messages.
std::string SupportedExpertNames();

}  // namespace stoker::offload
