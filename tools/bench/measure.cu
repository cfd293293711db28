#include <algorithm>
#include <cstdint>
#include <utility>

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

}  // namespace

Timing Summarize(std::vector<double> times_us) {
  std::sort(times_us.begin(), times_us.end());
  return Timing{times_us.front(), times_us[times_us.size() / 2],
                times_us[times_us.size() * 9 / 10]};
}

absl::StatusOr<LaunchTimer> LaunchTimer::Capture(const std::vector<cudaStream_t>& streams,
                                                 int launches, const LaunchFunction& launch) {
  LaunchTimer timer;
  timer.launches_ = launches;
  STOKER_CUDA(cudaHostAlloc(&timer.gate_, sizeof(*timer.gate_), cudaHostAllocMapped));
  for (cudaStream_t stream : streams) timer.ranks_.push_back(Rank{.stream = stream});
  for (size_t r = 0; r < streams.size(); ++r) {
    STOKER_RETURN_IF_ERROR(timer.CaptureRank(static_cast<int>(r), launch));
  }
  // CUDA loads a kernel at its first launch, which may wait for kernels that run: for the feeder,
  // which would wait for a rank behind the gate.
  *timer.gate_ = 1;
  Gate<<<1, 1, 0, streams.front()>>>(timer.gate_);
  STOKER_CUDA(cudaStreamSynchronize(streams.front()));
  return timer;
}

LaunchTimer::LaunchTimer(LaunchTimer&& other) noexcept
    : launches_(other.launches_),
      gate_(std::exchange(other.gate_, nullptr)),
      hangs_(other.hangs_),
      ranks_(std::exchange(other.ranks_, {})) {}

LaunchTimer::~LaunchTimer() {
  // Freeing waits for all kernels of the device. The end of the process frees without.
  if (hangs_) return;
  for (const Rank& rank : ranks_) {
    if (rank.graph != nullptr) cudaGraphExecDestroy(rank.graph);
    if (rank.begin != nullptr) cudaEventDestroy(rank.begin);
    if (rank.end != nullptr) cudaEventDestroy(rank.end);
  }
  if (gate_ != nullptr) cudaFreeHost(gate_);
}

absl::Status LaunchTimer::CaptureRank(int index, const LaunchFunction& launch) {
  Rank& rank = ranks_[index];
  cudaGraph_t graph = nullptr;
  STOKER_CUDA(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
  absl::Status status;
  for (int i = 0; i < launches_ && status.ok(); ++i) status.Update(launch(index, rank.stream));
  status.Update(CudaStatus(cudaStreamEndCapture(rank.stream, &graph), "cudaStreamEndCapture"));
  STOKER_RETURN_IF_ERROR(status);
  STOKER_CUDA(cudaGraphInstantiate(&rank.graph, graph, 0));
  STOKER_CUDA(cudaGraphDestroy(graph));
  STOKER_CUDA(cudaEventCreate(&rank.begin));
  return CudaStatus(cudaEventCreate(&rank.end), "cudaEventCreate");
}

absl::Status LaunchTimer::Await(absl::Duration timeout) const {
  const absl::Time deadline = absl::Now() + timeout;
  for (const Rank& rank : ranks_) {
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

absl::StatusOr<double> LaunchTimer::Replay(absl::Duration timeout) {
  volatile uint32_t* open = gate_;
  *open = 0;
  for (const Rank& rank : ranks_) {
    Gate<<<1, 1, 0, rank.stream>>>(gate_);
    STOKER_CUDA(cudaEventRecord(rank.begin, rank.stream));
    STOKER_CUDA(cudaGraphLaunch(rank.graph, rank.stream));
    STOKER_CUDA(cudaEventRecord(rank.end, rank.stream));
  }
  absl::SleepFor(absl::Microseconds(200));  // all graphs are at the gate
  *open = 1;
  const absl::Status status = Await(timeout);
  hangs_ = !status.ok();
  STOKER_RETURN_IF_ERROR(status);
  float slowest = 0.0f;
  for (const Rank& rank : ranks_) {
    float ms = 0.0f;
    STOKER_CUDA(cudaEventElapsedTime(&ms, rank.begin, rank.end));
    slowest = std::max(slowest, ms);
  }
  return slowest * 1000.0 / launches_;
}

absl::StatusOr<Timing> MeasureLaunches(const std::vector<cudaStream_t>& streams, int launches,
                                       int replays, absl::Duration timeout,
                                       const LaunchFunction& launch) {
  constexpr int kWarmUps = 3;
  STOKER_ASSIGN_OR_RETURN(LaunchTimer timer, LaunchTimer::Capture(streams, launches, launch));
  std::vector<double> times_us;
  for (int replay = -kWarmUps; replay < replays; ++replay) {
    STOKER_ASSIGN_OR_RETURN(const double time, timer.Replay(timeout));
    if (replay >= 0) times_us.push_back(time);
  }
  return Summarize(std::move(times_us));
}

}  // namespace stoker::bench
