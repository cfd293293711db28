// The command line of `stoker bench finalize`.
#pragma once

#include <vector>

#include "tools/bench/finalize.h"

namespace stoker::command {

// Runs the benchmark with what the flags say; returns the process's exit status.
int RunBenchFinalize(const std::vector<bench::Peer>& peers);

}  // namespace stoker::command
