// The world "one GPU, streams": N ranks of a group as N streams of one process, each with its own
// communicator, inputs and outputs on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/cuda_communicator.h"
#include "comm/rank_exchange.h"
#include "moe/arguments.h"
#include "moe/launch_options.h"
#include "moe/reference.h"
#include "testing/inputs.h"

namespace stoker::testing {

// Device copies of one rank's inputs, and its outputs, poisoned with 0xABAB before each run.
class DeviceInputs {
 public:
  // `residual_in_place` makes residual_out the residual_in.
  static absl::StatusOr<DeviceInputs> Upload(const Inputs& inputs, const moe::Shape& shape);
  DeviceInputs() = default;
  DeviceInputs(DeviceInputs&&) = default;
  DeviceInputs& operator=(DeviceInputs&&) = default;

  const moe::FinalizeArguments& finalize() const { return finalize_; }
  const moe::ReductionArguments& reduction() const { return reduction_; }
  const moe::NormArguments& norm() const { return norm_; }
  absl::Status Poison(cudaStream_t stream);
  // Takes over the inputs of another upload of the same shape and options; pointers stay.
  absl::Status CopyInputs(const DeviceInputs& from, cudaStream_t stream);
  absl::StatusOr<moe::NormResult> Download() const;

 private:
  struct Deleter {
    void operator()(void* p) const { cudaFree(p); }
  };
  using Buffer = std::unique_ptr<void, Deleter>;
  absl::StatusOr<const void*> Add(const void* data, int64_t bytes);

  moe::Shape shape_;
  moe::FinalizeArguments finalize_;
  moe::ReductionArguments reduction_;
  moe::NormArguments norm_;
  std::vector<Buffer> buffers_;
  std::vector<int64_t> sizes_;
  size_t inputs_ = 0;  // the first buffers are inputs, the others outputs
};

bool HasGpu();

class StreamWorld {
 public:
  static absl::StatusOr<std::unique_ptr<StreamWorld>> Create(int world,
                                                             const comm::GroupOptions& options,
                                                             const comm::CudaOptions& cuda = {});
  ~StreamWorld();

  int world() const { return static_cast<int>(communicators_.size()); }
  comm::CudaCommunicator& communicator(int rank) { return *communicators_[rank]; }
  // Destroys a rank's communicator, without closing it.
  void Drop(int rank) { communicators_[rank].reset(); }
  cudaStream_t stream(int rank) const { return streams_[rank]; }

  // Runs `call` on a thread per rank (collective calls) and returns the first error.
  absl::Status OnAllRanks(
      const std::function<absl::Status(comm::CudaCommunicator&, comm::RankExchange&)>& call);
  // Waits for all streams, at most `timeout`; kDeadlineExceeded if a launch hangs.
  absl::Status Synchronize(absl::Duration timeout);

 private:
  StreamWorld() = default;
  std::vector<std::unique_ptr<comm::RankExchange>> exchanges_;
  std::vector<std::unique_ptr<comm::CudaCommunicator>> communicators_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace stoker::testing
