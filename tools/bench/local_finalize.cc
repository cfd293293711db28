#include "tools/bench/local_finalize.h"

#include <algorithm>
#include <cstdint>

#include "moe/local_finalize.h"

namespace stoker::bench {

LocalFinalize::LocalFinalize(int world, const moe::Shape& shape) : shape_(shape), outputs_(world) {
  for (void*& output : outputs_) {
    cudaMalloc(&output, std::max<int64_t>(16, int64_t{2} * shape.tokens * shape.hidden));
  }
}

LocalFinalize::~LocalFinalize() {
  for (void* output : outputs_) cudaFree(output);
}

absl::Status LocalFinalize::Launch(int rank, const moe::FinalizeArguments& finalize,
                                   bool programmatic, cudaStream_t stream) {
  if (outputs_[rank] == nullptr) {
    return absl::ResourceExhaustedError("no device memory for the partial sums");
  }
  return moe::MoeFinalize(shape_, finalize, outputs_[rank], programmatic, stream);
}

}  // namespace stoker::bench
