// `stoker offload bench` and `stoker offload replay`.
#pragma once

#include <string>

namespace stoker::command {

// Measures an engine on a routing trace, schedulers side by side; flags say how. Exit status.
int RunOffloadBench();

// Compares cache policies on a trace at a few sizes and recommends one. Exit status.
int RunOffloadReplay(const std::string& path);

}  // namespace stoker::command
