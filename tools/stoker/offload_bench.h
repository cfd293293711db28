// `stoker offload bench`, `overhead` and `replay`.
#pragma once

#include <string>

namespace stoker::command {

// Measures an engine on a routing trace, schedulers side by side; flags say how. Exit status.
int RunOffloadBench();

// Measures all-hit calls against the same tiles without readiness, and calls that do next to
// nothing. Takes --threads and --pairs. Exit status.
int RunOffloadOverhead();

// Compares cache policies on a trace at a few sizes and recommends one. Exit status.
int RunOffloadReplay(const std::string& path);

}  // namespace stoker::command
