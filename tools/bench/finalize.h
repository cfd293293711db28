// `stoker bench finalize`: the fused finalize against its peers, side by side in one run.
//
// Every cell (world, hidden size, tokens) runs in a child process of its own with a deadline, so
// that a peer that hangs costs its row and not the run. In a cell all contenders get the same
// inputs; Stoker is measured first and last, and a difference below that A/A pair's is none.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/launch_policy.h"
#include "comm/protocol.h"
#include "moe/arguments.h"
#include "testing/stream_world.h"

namespace stoker::bench {

struct FinalizeBenchOptions {
  std::vector<int> worlds = {4};
  std::vector<int> hidden = {7168};
  std::vector<int> tokens = {1, 4, 16, 32, 64, 128};
  int top_k = 8;
  comm::WireType type = comm::WireType::kBf16;
  int launches = 20;
  int replays = 60;
  bool programmatic = true;
  bool early_trigger = false;
  std::string out;  // JSON lines are appended here
  std::string run;  // names the run in every row
  std::string commit;
  // Instead of the policy's shape; every listed one is a contender of its own.
  std::vector<comm::LaunchShape> shapes;
};

// One launch of one rank.
using ContenderLaunch = std::function<absl::Status(int rank, const moe::FinalizeArguments&,
                                                   const moe::NormArguments&, cudaStream_t)>;

// A peer: made in the child process of a cell; its launches may hang.
struct Peer {
  std::string name;
  std::function<absl::StatusOr<ContenderLaunch>(int world, const moe::Shape&, bool programmatic)>
      make;
};

// Prints the table; InvalidArgument for options that no cell can have, Unavailable without a GPU,
// Internal if any of Stoker's own rows is wrong or missing.
absl::Status BenchFinalize(const FinalizeBenchOptions& options, const std::vector<Peer>& peers);

}  // namespace stoker::bench
