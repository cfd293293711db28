// Timing the launches of N ranks that share one GPU as streams.
//
// One graph of `launches` back-to-back launches a rank; before each replay all streams wait at a
// gate, so that the ranks start together; the time of a replay is the slowest rank's, over the
// launches. Captured once, a contender can be replayed in turns with others, so that a drift of the
// clocks reaches all of them alike.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
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

// Of at least one time.
Timing Summarize(std::vector<double> times_us);

using LaunchFunction = std::function<absl::Status(int rank, cudaStream_t stream)>;

class LaunchTimer {
 public:
  // Captures `launches` calls of `launch` for each rank; the streams must outlive the timer.
  static absl::StatusOr<LaunchTimer> Capture(const std::vector<cudaStream_t>& streams, int launches,
                                             const LaunchFunction& launch);
  LaunchTimer(LaunchTimer&&) noexcept;
  LaunchTimer& operator=(LaunchTimer&&) = delete;
  ~LaunchTimer();

  // Replays once: microseconds a launch. kDeadlineExceeded if it takes longer than `timeout`; the
  // launches then still hang on the GPU, only the end of the process ends them, and the timer frees
  // nothing.
  absl::StatusOr<double> Replay(absl::Duration timeout);

 private:
  struct Rank {
    cudaStream_t stream = nullptr;
    cudaGraphExec_t graph = nullptr;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };
  LaunchTimer() = default;
  absl::Status CaptureRank(int rank, const LaunchFunction& launch);
  absl::Status Await(absl::Duration timeout) const;

  int launches_ = 0;
  uint32_t* gate_ = nullptr;  // mapped host memory
  bool hangs_ = false;
  std::vector<Rank> ranks_;
};

// Captures, warms up with three replays and replays `replays` times.
absl::StatusOr<Timing> MeasureLaunches(const std::vector<cudaStream_t>& streams, int launches,
                                       int replays, absl::Duration timeout,
                                       const LaunchFunction& launch);

}  // namespace stoker::bench
