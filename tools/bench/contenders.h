// What `stoker bench finalize` can measure: ways to get from permuted expert rows to residual_out
// and norm_out on N ranks that share one GPU as streams, and what bounds them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/launch_policy.h"
#include "moe/arguments.h"
#include "testing/stream_world.h"
#include "tools/bench/least_bytes.h"
#include "tools/bench/packets.h"

namespace stoker::bench {

// One launch of one rank; several kernels, if that is what the way takes.
using ContenderLaunch = std::function<absl::Status(int rank, const moe::FinalizeArguments&,
                                                   const moe::NormArguments&, cudaStream_t)>;

// Of several contenders with the same name, in a row, the fastest is measured.
struct Contender {
  std::string name;
  std::string launch_shape;
  ContenderLaunch launch;
  int64_t bytes = 0;    // that all ranks move in a launch; 0: not counted
  int repeats = 1;      // of the op's accesses in a launch
  bool own = false;     // Stoker itself: its failure fails the run
  bool outputs = true;  // false: it leaves nothing that could be checked
  bool timed = true;    // false: only its outputs are of interest
  int launches = 0;     // in a graph; 0: as the options say
};

// A way that is not Stoker's; made in the child process of a cell, and its launches may hang.
struct PeerLaunch {
  std::string launch_shape;
  ContenderLaunch launch;
  int64_t bytes = 0;    // 0: what the peer's way takes
  bool outputs = true;  // as in Contender
};
struct Peer {
  std::string name;
  Way way;
  // One launch, or several launch shapes to choose the fastest from.
  std::function<absl::StatusOr<std::vector<PeerLaunch>>(int world, const moe::Shape&,
                                                        bool programmatic)>
      make;
};

struct ContenderOptions {
  bool programmatic = true;
  bool early_trigger = false;
  // Beside the policy's shape; every listed one is a contender of its own.
  std::vector<comm::LaunchShape> shapes;
  // First words of the names of those to measure beside Stoker's own and the bound; empty: all.
  std::vector<std::string> against;

  bool Wants(const std::string& name) const;
};

// Stoker with the other exchange, with its successor started early (for successors that wait, as
// the next launch here does), with FP32 residual (its outputs only), the kernel by hand and the
// kernel without guards where they apply, the reduction of as many rows, and the unfused way:
// finalize as one kernel, all-reduce with residual and RMSNorm as a second. First and last Stoker
// itself, an A/A pair.
std::vector<Contender> OwnContenders(const ContenderOptions& options, const moe::Shape& shape,
                                     int top_k, testing::StreamWorld& world);

// "floor": the launch without data; "traffic, EXCHANGE": the accesses without waiting, as often
// over as takes a while, in several launch shapes. For one token also the launch cut off behind
// each of its parts (tools/bench/stages.h). bf16 only.
absl::StatusOr<std::vector<Contender>> BoundContenders(const ContenderOptions& options,
                                                       const moe::Shape& shape, int top_k,
                                                       testing::StreamWorld& world);

// The finalize kernel of PR #6631 as we read it (tools/bench/pr6631.h).
Peer Pr6631Peer();

// "packets, sentinel" and "packets, tagged": the exchange alone (tools/bench/packets.h) of up to 32
// tokens, which it holds in one turn.
Peer PacketsPeer(PacketKind kind);

}  // namespace stoker::bench
