#include <cstdint>
#include <flashinfer/comm/trtllm_moe_allreduce_fusion.cuh>

#include "base/cuda_status.h"
#include "tools/bench/peers/flashinfer.h"
#include "version.h"

namespace stoker::bench {
namespace {

namespace peer = flashinfer::trtllm_moe_allreduce_fusion;

template <class T>
absl::Status LaunchAs(const FlashInferWorkspace& workspace, int rank, const moe::Shape& shape,
                      const moe::FinalizeArguments& finalize, const moe::NormArguments& norm,
                      bool programmatic, cudaStream_t stream) {
  peer::MoeFinalizeAllReduceFusionParams<T> params{};
  params.nranks = workspace.world();
  params.rank = rank;
  params.size = shape.tokens * shape.hidden;
  params.hidden_dim = shape.hidden;
  params.workspace = workspace.table(rank);
  params.allreduce_in = const_cast<void*>(finalize.rows);
  params.residual_in = const_cast<void*>(norm.residual_in);
  params.residual_out = norm.residual_out;
  params.norm_out = norm.norm_out;
  params.rms_gamma = const_cast<void*>(norm.gamma);
  params.rms_eps = norm.eps;
  params.weight_bias = norm.weight_bias;
  params.scale_factor = 1.0f;
  params.stream = stream;
  params.top_k = finalize.top_k;
  params.expert_scale_factor = const_cast<void*>(finalize.weights);
  params.shared_expert_output = const_cast<void*>(finalize.shared);
  params.expanded_idx_to_permuted_idx = const_cast<int32_t*>(finalize.indices);
  params.routed_scaling_factor = finalize.routed_scaling_factor;
  // Without quantised outputs; the public entry would instantiate those as well.
  cudaError_t error = cudaErrorNotSupported;
  switch (workspace.world()) {
    case 2:
      error = peer::moefinalize_allreduce_fusion_kernel_launcher<T, 2, true, true, false>(
          params, programmatic);
      break;
    case 4:
      error = peer::moefinalize_allreduce_fusion_kernel_launcher<T, 4, true, true, false>(
          params, programmatic);
      break;
    case 8:
      error = peer::moefinalize_allreduce_fusion_kernel_launcher<T, 8, true, true, false>(
          params, programmatic);
      break;
  }
  return CudaStatus(error, "FlashInfer's finalize launcher");
}

}  // namespace

const char* FlashInferVersion() { return STOKER_FLASHINFER_VERSION; }

absl::Status FlashInferFinalize(const FlashInferWorkspace& workspace, int rank,
                                const moe::Shape& shape, const moe::FinalizeArguments& finalize,
                                const moe::NormArguments& norm, bool programmatic,
                                cudaStream_t stream) {
  if (shape.wire_type == comm::WireType::kBf16) {
    return LaunchAs<__nv_bfloat16>(workspace, rank, shape, finalize, norm, programmatic, stream);
  }
  return LaunchAs<half>(workspace, rank, shape, finalize, norm, programmatic, stream);
}

}  // namespace stoker::bench
