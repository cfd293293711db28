// The same expert tiles as the engine's, with everything in memory and nothing to decide: tiles are
// dealt to the threads in advance, with a barrier after FC1 and after FC2. What the engine's
// readiness counters cost is its time against this.
//
//   PlainCall plain(kernel, shape, threads);
//   plain.Run(experts, hidden, weights, out);    // one token
//
// Threads spin between and within calls: for measuring only. One thread at a time calls Run.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "offload/dispatch/expert_kernel.h"

namespace stoker::tools {

class PlainCall {
 public:
  PlainCall(const offload::ExpertKernel& kernel, const offload::ExpertShape& shape, int threads);
  ~PlainCall();

  // `experts` in ascending id; out[hidden].
  void Run(absl::Span<const offload::ExpertView> experts, const float* hidden,
           absl::Span<const float> weights, float* out);

 private:
  void Work(int thread);
  void Tiles(int thread, int phase);
  void Barrier(int passed);

  const offload::ExpertKernel& kernel_;
  const offload::ExpertShape shape_;
  const int count_;
  absl::Span<const offload::ExpertView> experts_;
  std::vector<char> prepared_;
  std::vector<float> intermediate_;
  std::vector<char> prepared_fc2_;
  std::vector<float> rows_;
  std::atomic<int> call_{0};     // of this number
  std::atomic<int> arrived_{0};  // at barriers, since the start
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace stoker::tools
