#include <flashinfer/comm/trtllm_allreduce_fusion.cuh>

#include "base/cuda_status.h"
#include "tools/bench/peers/flashinfer.h"

namespace stoker::bench {
namespace {

namespace peer = flashinfer::trtllm_allreduce_fusion;

template <class T>
absl::Status LaunchAs(const FlashInferWorkspace& workspace, int rank, bool one_shot,
                      const moe::Shape& shape, const void* input, const moe::NormArguments& norm,
                      bool programmatic, cudaStream_t stream) {
  peer::AllReduceFusionParams<T> params{};
  params.nranks = workspace.world();
  params.rank = rank;
  params.size = shape.tokens * shape.hidden;
  params.hidden_dim = shape.hidden;
  params.workspace = workspace.table(rank);
  params.allreduce_in = const_cast<void*>(input);
  params.residual_in = const_cast<void*>(norm.residual_in);
  params.residual_out = norm.residual_out;
  params.norm_out = norm.norm_out;
  params.rms_gamma = const_cast<void*>(norm.gamma);
  params.rms_eps = norm.eps;
  params.weight_bias = norm.weight_bias;
  params.use_oneshot = one_shot;
  params.stream = stream;
  params.pattern = peer::AllReduceFusionPattern::kARResidualRMSNorm;
  constexpr auto kPattern = peer::AllReduceFusionPattern::kARResidualRMSNorm;
  constexpr bool kFp32Sums = true;
  cudaError_t error = cudaErrorNotSupported;
  switch (workspace.world()) {
    case 2:
      error =
          peer::allreduce_fusion_kernel_launcher<kPattern, T, 2, kFp32Sums>(params, programmatic);
      break;
    case 4:
      error =
          peer::allreduce_fusion_kernel_launcher<kPattern, T, 4, kFp32Sums>(params, programmatic);
      break;
    case 8:
      error =
          peer::allreduce_fusion_kernel_launcher<kPattern, T, 8, kFp32Sums>(params, programmatic);
      break;
  }
  return CudaStatus(error, "FlashInfer's all-reduce launcher");
}

}  // namespace

absl::Status FlashInferAllReduce(const FlashInferWorkspace& workspace, int rank, bool one_shot,
                                 const moe::Shape& shape, const void* input,
                                 const moe::NormArguments& norm, bool programmatic,
                                 cudaStream_t stream) {
  if (shape.wire_type == comm::WireType::kBf16) {
    return LaunchAs<__nv_bfloat16>(workspace, rank, one_shot, shape, input, norm, programmatic,
                                   stream);
  }
  return LaunchAs<half>(workspace, rank, one_shot, shape, input, norm, programmatic, stream);
}

}  // namespace stoker::bench
