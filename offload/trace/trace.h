// Which experts a model asked for: recorded, generated or read from a file.
//
//   STOKER_ASSIGN_OR_RETURN(const Trace trace, ReadTrace("qwen.csv"));
//   STOKER_RETURN_IF_ERROR(WriteTrace(trace, "mine.csv"));
//
// A file is lines "turn,phase,step,layer,slot,expert,weight[,...]" (further columns are ignored),
// phase 0 a prompt and 1 decode, slots of a token at a layer consecutive and ascending from 0.
// Lines that start with # and one line of column names are skipped; "n_layer=" and "n_expert=" in a
// # line give the sizes. The file is untrusted; limits: 1 GiB, 4096 layers, 65536 experts, 32
// routes a token. Errors are InvalidArgument and name the line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stoker::offload {

struct Route {
  int expert = 0;
  float weight = 0.0f;
};

// The experts of one token at one layer, in the router's order.
struct RouteGroup {
  bool decode = true;
  int turn = 0;
  int64_t step = 0;
  int layer = 0;
  std::vector<Route> routes;
};

struct Trace {
  int layers = 0;
  int experts = 0;
  std::vector<RouteGroup> groups;  // in the order of the model's steps
};

absl::StatusOr<Trace> ReadTrace(const std::string& path);
// `name` stands for the file in messages.
absl::StatusOr<Trace> ParseTrace(const std::string& text, const std::string& name);
absl::Status WriteTrace(const Trace& trace, const std::string& path);

// The decode groups alone, as the definition of a replay wants them.
Trace DecodeOnly(const Trace& trace);

}  // namespace stoker::offload
