#include "base/cuda_status.h"
#include "comm/cuda_environment.cuh"
#include "comm/mailbox.h"
#include "moe/finalize_producer.h"
#include "moe/make_params.h"
#include "tools/bench/local_finalize.h"

namespace stoker::bench {
namespace {

constexpr int kThreads = 128;
// Percent of an SM's 228 KiB; rounded up to 8 KiB. An SM changes its split between L1 and shared
// memory only when it is idle. Where ranks share a GPU, three ranks' all-reduces can wait on every
// SM for the fourth's, whose finalize would wait for ever for an SM if it asked for another split
// than theirs.
constexpr int kSharedMemoryPercent = 3;

template <class T>
__global__ void __launch_bounds__(kThreads)
    LocalFinalizeKernel(const __grid_constant__ moe::FinalizeParams params, comm::Packet* output) {
  comm::CudaEnvironment env;
  comm::Vectors<1> vectors;
  vectors.index[0] = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  vectors.inside[0] = vectors.index[0] < params.packets;
  vectors.row_warps = kThreads / 32;
  const int token = static_cast<int>(blockIdx.y);
  moe::FinalizeProducer<T> producer(params);
  env.GridDependencyWait();
  producer.Fetch(env, token);
  comm::Packet row[1];
  producer.Row(env, token, vectors, row);
  if (vectors.inside[0]) {
    env.StoreOutput(output + static_cast<int64_t>(token) * params.packets + vectors.index[0],
                    row[0]);
  }
  env.LaunchDependents();
}

}  // namespace

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
  if (shape_.tokens == 0) return absl::OkStatus();
  moe::FinalizeParams params = moe::MakeFinalizeParams(shape_, finalize);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = programmatic ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3((params.packets + kThreads - 1) / kThreads, shape_.tokens);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  auto* output = static_cast<comm::Packet*>(outputs_[rank]);
  auto* kernel = shape_.wire_type == comm::WireType::kBf16 ? LocalFinalizeKernel<comm::Bf16>
                                                           : LocalFinalizeKernel<comm::Fp16>;
  STOKER_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   kSharedMemoryPercent));
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, params, output), "local finalize");
}

}  // namespace stoker::bench
