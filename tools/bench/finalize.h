// `stoker bench finalize`: the fused finalize against its peers, side by side in one run.
//
// Every cell (world, hidden size, tokens) runs in a child process of its own with a deadline. In a
// cell all contenders get the same inputs, are checked once, and are then replayed in turns,
// forwards and backwards alternately, so that a drift of the clocks reaches all alike. Stoker takes
// part twice: a difference below that A/A pair's is none. A peer that hangs costs its row: the cell
// is run again without it. What bounds the cell is measured in the same turns: the launch without
// data, and the same accesses without waiting.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/protocol.h"
#include "tools/bench/contenders.h"

namespace stoker::bench {

struct FinalizeBenchOptions {
  bool loopback = false;  // tools/bench/loopback.h instead of ranks as streams
  std::vector<int> worlds = {4};
  std::vector<int> hidden = {7168};
  std::vector<int> tokens = {1, 4, 16, 32, 64, 128};
  int top_k = 8;
  comm::WireType type = comm::WireType::kBf16;
  int launches = 20;
  int rounds = 12;
  int replays_per_round = 5;
  ContenderOptions contenders;
  std::string out;      // JSON lines are appended here
  bool resume = false;  // leave out the cells that `out` holds to their end
  std::string run;      // names the run in every row
  std::string commit;
};

// Prints the table; InvalidArgument for options that no cell can have, Unavailable without a GPU,
// Internal if any of Stoker's own rows is wrong or missing.
absl::Status BenchFinalize(const FinalizeBenchOptions& options, const std::vector<Peer>& peers);

}  // namespace stoker::bench
