// Timing the launches of N ranks that share one GPU as streams.
//
// One graph of `launches` back-to-back launches a rank; before each replay all streams wait at a
// gate, so that the ranks start together; the time of a replay is the slowest rank's, over the
// launches.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace stoker::bench {

struct Timing {
  double min_us = 0.0;
  double median_us = 0.0;
  double p90_us = 0.0;
};

using LaunchFunction = std::function<absl::Status(int rank, cudaStream_t stream)>;

// kDeadlineExceeded if a replay takes longer than `timeout`: the launches then still hang on the
// GPU.
absl::StatusOr<Timing> MeasureLaunches(const std::vector<cudaStream_t>& streams, int launches,
                                       int replays, absl::Duration timeout,
                                       const LaunchFunction& launch);

}  // namespace stoker::bench
