// What `stoker bench finalize` can measure: ways to get from permuted expert rows to residual_out
// and norm_out on N ranks that share one GPU as streams.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/launch_policy.h"
#include "moe/arguments.h"
#include "testing/stream_world.h"

namespace stoker::bench {

// One launch of one rank; several kernels, if that is what the way takes.
using ContenderLaunch = std::function<absl::Status(int rank, const moe::FinalizeArguments&,
                                                   const moe::NormArguments&, cudaStream_t)>;

struct Contender {
  std::string name;
  std::string launch_shape;
  ContenderLaunch launch;
  bool own = false;  // Stoker itself: its failure fails the run
};

// A way that is not Stoker's; made in the child process of a cell, and its launches may hang.
struct Peer {
  std::string name;
  std::function<absl::StatusOr<ContenderLaunch>(int world, const moe::Shape&, bool programmatic)>
      make;
};

struct ContenderOptions {
  bool programmatic = true;
  bool early_trigger = false;
  // Beside the policy's shape; every listed one is a contender of its own.
  std::vector<comm::LaunchShape> shapes;
};

// Stoker twice (an A/A pair), with its successor started early (for successors that wait, as the
// next launch here does), the kernel by hand and the kernel without guards where they apply, and
// the unfused way: finalize as one kernel, all-reduce with residual and RMSNorm as a second.
std::vector<Contender> OwnContenders(const ContenderOptions& options, const moe::Shape& shape,
                                     testing::StreamWorld& world);

// The finalize kernel of PR #6631 as we read it (tools/bench/pr6631.h).
Peer Pr6631Peer();

}  // namespace stoker::bench
