// `stoker bench finalize` where there is no GPU: the same rows from CPU ranks, threads of this
// process, so that the program and its checks run everywhere. The times say nothing about a GPU.
#pragma once

#include "absl/status/status.h"
#include "tools/bench/finalize.h"

namespace stoker::bench {

// Internal if a rank fails or ranks differ. Options that only a GPU has are ignored.
absl::Status BenchFinalizeOnCpu(const FinalizeBenchOptions& options);

}  // namespace stoker::bench
