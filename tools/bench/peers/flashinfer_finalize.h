// FlashInfer's fused finalize kernel, as its installed package ships it, for N ranks that share one
// GPU and one process. Its ranks poll their peers' memory and have no time limit: if a launch
// hangs, only the end of the process ends it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moe/arguments.h"

namespace stoker::bench {

class FlashInferFinalize {
 public:
  static const char* Version();
  // World 2, 4 or 8.
  static absl::StatusOr<std::unique_ptr<FlashInferFinalize>> Create(int world, int tokens_max,
                                                                    int hidden);
  ~FlashInferFinalize();
  // bf16 or fp16, weights of T, weight_bias 0 or 1; asynchronous.
  absl::Status Launch(int rank, const moe::Shape& shape, const moe::FinalizeArguments& finalize,
                      const moe::NormArguments& norm, bool programmatic, cudaStream_t stream);

 private:
  FlashInferFinalize() = default;
  int world_ = 0;
  std::vector<void*> buffers_;
  std::vector<void**> tables_;  // the device pointer table of each rank
};

}  // namespace stoker::bench
