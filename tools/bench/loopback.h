// `stoker bench finalize --placement=loopback`: one rank with the GPU for itself, but for the SMs
// of the feeder that plays its peers (tools/bench/feeder.h). It guards the launch shapes that a
// rank gets on a GPU of its own; there is no wire in it.
#pragma once

#include "absl/status/status.h"
#include "tools/bench/finalize.h"
#include "tools/bench/finalize_rows.h"

namespace stoker::bench {

// Measures one cell, in the child process: Stoker twice and, beyond two ranks, with the other
// exchange. Rank 0's rows and results are compared with the reference, bit for bit.
absl::Status RunLoopbackCell(const FinalizeBenchOptions& options, const Cell& cell);

}  // namespace stoker::bench
