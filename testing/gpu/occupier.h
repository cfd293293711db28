// A kernel of somebody else: it holds SMs, whole, until it is released.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace stoker::testing {

class Occupier {
 public:
  // Starts it on `sms` SMs, with so much shared memory that nothing else fits beside it there, and
  // returns once all of it runs; DeadlineExceeded if that takes longer than `timeout`. It ends by
  // itself after ten seconds.
  static absl::StatusOr<std::unique_ptr<Occupier>> Start(int sms, absl::Duration timeout);
  // Releases it and waits for its end.
  ~Occupier();

  bool StillRuns() const;

 private:
  Occupier() = default;

  struct Words {
    uint32_t running;  // CTAs
    uint32_t released;
  };
  cudaStream_t stream_ = nullptr;
  volatile Words* words_ = nullptr;  // mapped host memory
};

}  // namespace stoker::testing
