#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "tools/bench/measure.h"

namespace stoker::bench {
namespace {

// Waits until the host opens the gate, at most ten seconds, so that a host that dies leaves no
// kernel.
__global__ void Gate(const volatile uint32_t* open) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*open == 0 && now - start < 10'000'000'000ull);
}

struct Rank {
  cudaGraphExec_t graph = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

absl::Status Capture(cudaStream_t stream, int rank, int launches, const LaunchFunction& launch,
                     Rank& result) {
  cudaGraph_t graph = nullptr;
  STOKER_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  absl::Status status;
  for (int i = 0; i < launches && status.ok(); ++i) status = launch(rank, stream);
  status.Update(CudaStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  STOKER_RETURN_IF_ERROR(status);
  STOKER_CUDA(cudaGraphInstantiate(&result.graph, graph, 0));
  STOKER_CUDA(cudaGraphDestroy(graph));
  STOKER_CUDA(cudaEventCreate(&result.begin));
  return CudaStatus(cudaEventCreate(&result.end), "cudaEventCreate");
}

absl::Status Await(const std::vector<Rank>& ranks, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (const Rank& rank : ranks) {
    cudaError_t state = cudaErrorNotReady;
    while ((state = cudaEventQuery(rank.end)) == cudaErrorNotReady) {
      if (absl::Now() > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("did not finish within ", absl::FormatDuration(timeout)));
      }
    }
    STOKER_RETURN_IF_ERROR(CudaStatus(state, "replay"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Timing> MeasureLaunches(const std::vector<cudaStream_t>& streams, int launches,
                                       int replays, absl::Duration timeout,
                                       const LaunchFunction& launch) {
  uint32_t* open = nullptr;
  STOKER_CUDA(cudaHostAlloc(&open, sizeof(*open), cudaHostAllocMapped));
  volatile uint32_t* gate = open;
  std::vector<Rank> ranks(streams.size());
  for (size_t r = 0; r < streams.size(); ++r) {
    STOKER_RETURN_IF_ERROR(Capture(streams[r], static_cast<int>(r), launches, launch, ranks[r]));
  }
  constexpr int kWarmups = 3;
  std::vector<double> times;
  for (int replay = -kWarmups; replay < replays; ++replay) {
    *gate = 0;
    for (size_t r = 0; r < streams.size(); ++r) {
      Gate<<<1, 1, 0, streams[r]>>>(open);
      STOKER_CUDA(cudaEventRecord(ranks[r].begin, streams[r]));
      STOKER_CUDA(cudaGraphLaunch(ranks[r].graph, streams[r]));
      STOKER_CUDA(cudaEventRecord(ranks[r].end, streams[r]));
    }
    absl::SleepFor(absl::Microseconds(200));  // all graphs are at the gate
    *gate = 1;
    STOKER_RETURN_IF_ERROR(Await(ranks, timeout));
    float slowest = 0.0f;
    for (const Rank& rank : ranks) {
      float ms = 0.0f;
      STOKER_CUDA(cudaEventElapsedTime(&ms, rank.begin, rank.end));
      slowest = std::max(slowest, ms);
    }
    if (replay >= 0) times.push_back(slowest * 1000.0 / launches);
  }
  for (const Rank& rank : ranks) {
    cudaGraphExecDestroy(rank.graph);
    cudaEventDestroy(rank.begin);
    cudaEventDestroy(rank.end);
  }
  cudaFreeHost(open);
  std::sort(times.begin(), times.end());
  return Timing{times.front(), times[times.size() / 2], times[times.size() * 9 / 10]};
}

}  // namespace stoker::bench
