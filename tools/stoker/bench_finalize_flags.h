// The command line of `stoker bench finalize`.
#pragma once

#include <vector>

#include "tools/bench/finalize.h"

namespace stoker::command {

// Runs the benchmark with what the flags say, against `peers` and those that need no package;
// returns the process's exit status.
int RunBenchFinalize(std::vector<bench::Peer> peers);

}  // namespace stoker::command
