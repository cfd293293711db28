// `stoker bench guards`: what a launch pays for its headers, ticket, deadline, abort word and
// report, as the difference between the shipped kernel and the same without them
// (tools/bench/unguarded.h).
//
// Both are replayed in pairs of turns, shipped, unguarded, unguarded, shipped and the other way
// round alternately, so that neither a drift nor an order counts; beside each such pair one of the
// shipped kernel with itself, whose difference says what the method cannot see.
#pragma once

#include "absl/status/status.h"
#include "tools/bench/finalize.h"

namespace stoker::bench {

// Of the options: worlds, hidden, tokens, top_k, launches, out, run, commit. Prints a line a cell
// and appends it to `out`. bf16, programmatic launch. Unavailable without a GPU; DataLoss if the
// two kernels give other bits; InvalidArgument where there is no unguarded build.
absl::Status BenchGuards(const FinalizeBenchOptions& options);

}  // namespace stoker::bench
