// moe/local_finalize.h with an output for every rank: the first half of the unfused way, whose
// second half is an all-reduce with residual and RMSNorm.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "absl/status/status.h"
#include "moe/arguments.h"

namespace stoker::bench {

class LocalFinalize {
 public:
  LocalFinalize(int world, const moe::Shape& shape);
  LocalFinalize(const LocalFinalize&) = delete;
  LocalFinalize& operator=(const LocalFinalize&) = delete;
  ~LocalFinalize();

  // Asynchronous. With `programmatic` it may start before its predecessor in the stream ends, and
  // waits for it (griddepcontrol.wait).
  absl::Status Launch(int rank, const moe::FinalizeArguments& finalize, bool programmatic,
                      cudaStream_t stream);
  // [tokens, H] of the wire type, on the device; valid once the rank's launch has completed.
  void* output(int rank) const { return outputs_[rank]; }

 private:
  moe::Shape shape_;
  std::vector<void*> outputs_;
};

}  // namespace stoker::bench
