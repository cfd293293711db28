#include "testing/stream_world.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/thread_exchange.h"

namespace stoker::testing {

absl::StatusOr<const void*> DeviceInputs::Add(const void* data, int64_t bytes) {
  if (data == nullptr) return static_cast<const void*>(nullptr);
  void* copy = nullptr;
  STOKER_CUDA(cudaMalloc(&copy, bytes == 0 ? 16 : bytes));
  buffers_.emplace_back(copy);
  sizes_.push_back(bytes);
  STOKER_CUDA(cudaMemcpy(copy, data, bytes, cudaMemcpyHostToDevice));
  return static_cast<const void*>(copy);
}

absl::StatusOr<DeviceInputs> DeviceInputs::Upload(const Inputs& in, const moe::Shape& shape) {
  DeviceInputs device;
  device.shape_ = shape;
  device.finalize_ = in.finalize;
  device.norm_ = in.norm;
  const int64_t row_bytes = static_cast<int64_t>(shape.tokens) * shape.hidden * 2;
  STOKER_ASSIGN_OR_RETURN(device.finalize_.rows,
                          device.Add(in.finalize.rows, static_cast<int64_t>(in.rows.size()) * 2));
  STOKER_ASSIGN_OR_RETURN(
      const void* indices,
      device.Add(in.finalize.indices, static_cast<int64_t>(in.indices.size()) * 4));
  device.finalize_.indices = static_cast<const int32_t*>(indices);
  STOKER_ASSIGN_OR_RETURN(device.finalize_.weights,
                          device.Add(in.finalize.weights, static_cast<int64_t>(in.weights.size())));
  STOKER_ASSIGN_OR_RETURN(device.finalize_.shared, device.Add(in.finalize.shared, row_bytes));
  STOKER_ASSIGN_OR_RETURN(device.finalize_.cold,
                          device.Add(in.finalize.cold, static_cast<int64_t>(in.cold.size())));
  device.reduction_ = {.rows = device.finalize_.rows,
                       .experts = in.reduction.experts,
                       .shared = device.finalize_.shared};
  STOKER_ASSIGN_OR_RETURN(
      const void* scales,
      device.Add(in.reduction.scales, static_cast<int64_t>(in.scales.size()) * 4));
  device.reduction_.scales = static_cast<const float*>(scales);
  STOKER_ASSIGN_OR_RETURN(device.norm_.residual_in, device.Add(in.norm.residual_in, row_bytes));
  STOKER_ASSIGN_OR_RETURN(device.norm_.gamma,
                          device.Add(in.norm.gamma, static_cast<int64_t>(in.gamma.size())));
  device.inputs_ = device.buffers_.size();
  const std::vector<uint16_t> poison(row_bytes / 2 + 8, 0xABAB);
  STOKER_ASSIGN_OR_RETURN(const void* residual_out, device.Add(poison.data(), row_bytes));
  STOKER_ASSIGN_OR_RETURN(const void* norm_out, device.Add(poison.data(), row_bytes));
  device.norm_.residual_out = const_cast<void*>(residual_out);
  device.norm_.norm_out = const_cast<void*>(norm_out);
  return device;
}

absl::Status DeviceInputs::Poison(cudaStream_t stream) {
  const int64_t row_bytes = static_cast<int64_t>(shape_.tokens) * shape_.hidden * 2;
  STOKER_CUDA(cudaMemsetAsync(norm_.residual_out, 0xAB, row_bytes, stream));
  return CudaStatus(cudaMemsetAsync(norm_.norm_out, 0xAB, row_bytes, stream), "cudaMemsetAsync");
}

absl::Status DeviceInputs::CopyInputs(const DeviceInputs& from, cudaStream_t stream) {
  if (from.sizes_ != sizes_) return absl::InvalidArgumentError("the uploads differ in shape");
  for (size_t i = 0; i < inputs_; ++i) {
    STOKER_CUDA(cudaMemcpyAsync(buffers_[i].get(), from.buffers_[i].get(), sizes_[i],
                                cudaMemcpyDeviceToDevice, stream));
  }
  return absl::OkStatus();
}

absl::StatusOr<moe::NormResult> DeviceInputs::Download() const {
  const int64_t elements = static_cast<int64_t>(shape_.tokens) * shape_.hidden;
  moe::NormResult result{moe::Rows(elements), moe::Rows(elements)};
  STOKER_CUDA(cudaMemcpy(result.residual_out.data(), norm_.residual_out, elements * 2,
                         cudaMemcpyDeviceToHost));
  STOKER_CUDA(
      cudaMemcpy(result.norm_out.data(), norm_.norm_out, elements * 2, cudaMemcpyDeviceToHost));
  return result;
}

absl::StatusOr<std::unique_ptr<StreamWorld>> StreamWorld::Create(int world,
                                                                 const comm::GroupOptions& options,
                                                                 const comm::CudaOptions& cuda) {
  auto result = std::unique_ptr<StreamWorld>(new StreamWorld());
  result->exchanges_ = comm::MakeThreadExchanges(world);
  result->communicators_.resize(world);
  std::vector<absl::Status> statuses(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto communicator = comm::CudaCommunicator::Create(options, cuda, *result->exchanges_[rank]);
      statuses[rank] = communicator.status();
      if (communicator.ok()) result->communicators_[rank] = std::move(*communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) STOKER_RETURN_IF_ERROR(status);
  for (int rank = 0; rank < world; ++rank) {
    cudaStream_t stream = nullptr;
    STOKER_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    result->streams_.push_back(stream);
  }
  return result;
}

StreamWorld::~StreamWorld() {
  OnAllRanks([](comm::CudaCommunicator& communicator, comm::RankExchange& exchange) {
    return communicator.Close(exchange, absl::Seconds(10));
  }).IgnoreError();
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

absl::Status StreamWorld::OnAllRanks(
    const std::function<absl::Status(comm::CudaCommunicator&, comm::RankExchange&)>& call) {
  std::vector<absl::Status> statuses(world());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world(); ++rank) {
    if (communicators_[rank] == nullptr) continue;
    threads.emplace_back(
        [&, rank] { statuses[rank] = call(*communicators_[rank], *exchanges_[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) STOKER_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status StreamWorld::Synchronize(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (int rank = 0; rank < world(); ++rank) {
    cudaError_t state = cudaErrorNotReady;
    while ((state = cudaStreamQuery(streams_[rank])) == cudaErrorNotReady) {
      if (absl::Now() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat("the launches of rank ", rank,
                                                        " did not complete within ",
                                                        absl::FormatDuration(timeout)));
      }
      absl::SleepFor(absl::Microseconds(20));
    }
    STOKER_RETURN_IF_ERROR(CudaStatus(state, "cudaStreamQuery"));
  }
  return absl::OkStatus();
}

bool HasGpu() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!found) cudaGetLastError();
  return found;
}

}  // namespace stoker::testing
