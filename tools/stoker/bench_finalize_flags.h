// The command line of `stoker bench finalize` and `stoker bench guards`.
#pragma once

#include <vector>

#include "tools/bench/finalize.h"

namespace stoker::command {

// Runs the benchmark with what the flags say, against `peers` and those that need no package;
// returns the process's exit status.
int RunBenchFinalize(std::vector<bench::Peer> peers);
// What the guards cost (tools/bench/guards.h), with the same flags.
int RunBenchGuards();

}  // namespace stoker::command
