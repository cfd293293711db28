// Sends a routing trace through an engine, a call for each token (or group of tokens) and layer,
// and measures.
//
//   STOKER_ASSIGN_OR_RETURN(const TraceRun run, RunTrace(*engine, trace, {}));
//
// Activations are pseudo-random, the same for the same trace. The first token (group) is run and
// hashed but not timed. Layers of the trace beyond the checkpoint's are left out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/engine.h"
#include "offload/trace/trace.h"

namespace stoker::tools {

struct RunOptions {
  int tokens_per_call = 1;
  int tokens_max = 1 << 30;
  // Called now and then with the share that is done.
  std::function<void(double)> progress;
};

// What bounds every schedule: bytes a second of the lanes alone and of calls whose experts are all
// there, and bytes a CPU second of both, which share `cpus`.
struct Rates {
  double io = 0;
  double compute = 0;
  double io_cpu = 0;
  double compute_cpu = 0;
  int cpus = 1;
};

struct TraceRun {
  int64_t tokens = 0;  // timed
  int64_t calls = 0;   // timed
  double seconds = 0;  // in calls
  double stall_seconds = 0;
  double cpu_seconds = 0;  // of the process
  int64_t hits = 0, misses = 0, evictions = 0;
  int64_t bytes_read = 0, bytes_computed = 0;
  std::vector<std::pair<int64_t, int64_t>> call_bytes;  // read, computed
  std::string hash;                                     // SHA-256 of all outputs

  double tokens_per_second() const { return seconds > 0 ? tokens / seconds : 0; }
  double hit_rate() const {
    return hits + misses > 0 ? static_cast<double>(hits) / (hits + misses) : 0;
  }
  // Seconds that no schedule can go below: a call takes as long as its reads, as its tiles, and,
  // with `share_cpus`, as the CPU time of both.
  double Bound(const Rates& rates, bool share_cpus) const;
  // What is asked of a schedule: 1.05 of that, and the time of one chunk for a call with misses.
  double Target(const Rates& rates, bool share_cpus, double chunk_bytes) const;
};

absl::StatusOr<TraceRun> RunTrace(offload::Engine& engine, const offload::Trace& trace,
                                  const RunOptions& options);

// A bar on standard error, drawn only on a terminal.
void DrawProgress(const std::string& what, double share);

}  // namespace stoker::tools
