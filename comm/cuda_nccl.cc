// NCCL's part of a CUDA group.
#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/bounded_wait.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/cuda_communicator.h"
#include "comm/nccl_library.h"
#include "comm/wire_type.h"

namespace stoker::comm {

absl::Status CudaCommunicator::SumWithNccl(const void* input, void* output, int64_t elements,
                                           WireType type, cudaStream_t stream) {
  if (nccl_ == nullptr) return absl::InvalidArgumentError("the group was created without NCCL");
  return nccl_->Sum(input, output, elements, type, stream);
}

absl::Status CudaCommunicator::AddNccl(bool optional, RankExchange& exchange,
                                       absl::Duration timeout) {
  absl::Status status;
  if (optional && plan_.world == 1) {
    status = absl::FailedPreconditionError("a group of one rank has nobody to sum with");
  } else if (optional && gpu_shared_) {
    status = absl::FailedPreconditionError("two ranks share a GPU, which NCCL refuses by default");
  } else {
    const absl::StatusOr<const NcclLibrary*> library = NcclLibrary::Get();
    status = exchange.AllSucceeded("looking for NCCL", library.status(), timeout);
    if (status.ok()) {
      nccl_ = std::make_unique<NcclAllReduce>(**library, plan_.rank, plan_.world);
      status = ConnectNccl(exchange, timeout);
    }
  }
  if (status.ok() || !optional) return status;
  nccl_ = nullptr;
  plan_.nccl_tokens_max = 0;
  plan_.nccl_refusal = std::string(status.message());
  return absl::OkStatus();
}

absl::Status CudaCommunicator::ConnectNccl(RankExchange& exchange, absl::Duration timeout) {
  STOKER_RETURN_IF_ERROR(nccl_->Connect(exchange, timeout));
  // By summing, not by its word; what NCCL sets up with its first sum is then there.
  const absl::Status summed = TrySum(timeout);
  if (!summed.ok()) nccl_->Abort();
  return exchange.AllSucceeded("summing with NCCL", summed, timeout);
}

// The fewest elements and the most: NCCL connects for each way of summing when it first takes it,
// which a capture must not have to do.
absl::Status CudaCommunicator::TrySum(absl::Duration timeout) {
  constexpr uint16_t kOne = 0x3F80;  // bf16
  constexpr int kOnes = 64;
  const int64_t most = int64_t{plan_.nccl_tokens_max} * plan_.hidden_max();
  void* probe = nullptr;
  STOKER_RETURN_IF_ERROR(CudaStatus(
      cudaMalloc(&probe, most * 2),
      absl::StrCat("cudaMalloc of ", most * 2, " bytes to try NCCL (lower its number of tokens)")));
  absl::Status status;
  for (const int64_t elements : {int64_t{kOnes}, most}) {
    uint16_t values[kOnes];
    std::fill(std::begin(values), std::end(values), kOne);
    status.Update(CudaStatus(cudaMemsetAsync(probe, 0, most * 2, control_stream_), "cudaMemset"));
    status.Update(CudaStatus(
        cudaMemcpyAsync(probe, values, sizeof(values), cudaMemcpyHostToDevice, control_stream_),
        "cudaMemcpy"));
    if (status.ok()) {
      status = nccl_->Sum(probe, probe, elements, WireType::kBf16, control_stream_);
    }
    const auto ended = [this] { return cudaStreamQuery(control_stream_) != cudaErrorNotReady; };
    if (status.ok()) {
      status = WaitUntil(ended, Deadline(Clock::Monotonic(), timeout), "NCCL's first sum");
    }
    if (!status.ok()) break;
    status = CudaStatus(cudaMemcpy(values, probe, sizeof(values), cudaMemcpyDeviceToHost),
                        "NCCL's first sum");
    const uint16_t wanted = Bf16::FromFloat(static_cast<float>(plan_.world));
    for (const uint16_t value : values) {
      if (status.ok() && value != wanted) {
        status = absl::InternalError(absl::StrCat("NCCL's sum over ", plan_.world,
                                                  " ranks of bf16 ones has the bits ", value,
                                                  " where ", wanted, " are expected"));
      }
    }
  }
  if (!status.ok()) nccl_->Abort();  // cudaFree would wait for it
  status.Update(CudaStatus(cudaFree(probe), "cudaFree"));
  return status;
}

}  // namespace stoker::comm
