// FlashInfer's finalize kernel with what pull requests #6630, #6631 and #6632 change, as we read
// their descriptions (https://github.com/flashinfer-ai/flashinfer/pull/6631): every rank polls its
// own arena, eight rows of a token are loaded at once, sums stay in FP32 and are rounded once per
// rank and once per sum, and the cluster is sized to the number of tokens. How it is sized the
// description does not say, so callers measure every shape there is (Shapes) and keep the fastest.
// The rest is the Lamport scheme that FlashInfer documents: three arenas, the previous one cleared
// between push and poll, negative zero as the sentinel. Written from that description, with none of
// its code; it has no time limit, no header and no check, and is for measuring only.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moe/arguments.h"

namespace stoker::bench {

class Pr6631Finalize {
 public:
  // World 2, 4 or 8; hidden a multiple of 256.
  static absl::StatusOr<std::unique_ptr<Pr6631Finalize>> Create(int world, const moe::Shape& shape);
  ~Pr6631Finalize();

  struct Shape {
    int cluster, threads, clusters;
    std::string ToString() const;
  };
  // Every cluster size that divides the row's warps, with as many clusters as this rank's share of
  // the GPU holds at once; those with which the tokens need no second turn first.
  std::vector<Shape> Shapes() const;

  // Weights of T; weight_bias as given; asynchronous.
  absl::Status Launch(int rank, const Shape& how, const moe::FinalizeArguments& finalize,
                      const moe::NormArguments& norm, bool programmatic, cudaStream_t stream);

 private:
  Pr6631Finalize() = default;
  int ClustersAtOnce(int cluster, int threads) const;

  int world_ = 0;
  int sms_ = 0;  // of the device
  moe::Shape shape_;
  std::vector<void*> arenas_;
  std::vector<void*> controls_;
};

}  // namespace stoker::bench
