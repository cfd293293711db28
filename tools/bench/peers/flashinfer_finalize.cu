#include <cstdint>
#include <flashinfer/comm/trtllm_moe_allreduce_fusion.cuh>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "tools/bench/peers/flashinfer_finalize.h"
#include "version.h"

namespace stoker::bench {
namespace {

namespace peer = flashinfer::trtllm_moe_allreduce_fusion;

template <class T>
absl::Status LaunchAs(int world, int rank, void** table, const moe::Shape& shape,
                      const moe::FinalizeArguments& finalize, const moe::NormArguments& norm,
                      bool programmatic, cudaStream_t stream) {
  peer::MoeFinalizeAllReduceFusionParams<T> params{};
  params.nranks = world;
  params.rank = rank;
  params.size = shape.tokens * shape.hidden;
  params.hidden_dim = shape.hidden;
  params.workspace = table;
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
  if (world == 2) {
    error = peer::moefinalize_allreduce_fusion_kernel_launcher<T, 2, true, true, false>(
        params, programmatic);
  } else if (world == 4) {
    error = peer::moefinalize_allreduce_fusion_kernel_launcher<T, 4, true, true, false>(
        params, programmatic);
  } else if (world == 8) {
    error = peer::moefinalize_allreduce_fusion_kernel_launcher<T, 8, true, true, false>(
        params, programmatic);
  }
  return CudaStatus(error, "FlashInfer's finalize launcher");
}

}  // namespace

const char* FlashInferFinalize::Version() { return STOKER_FLASHINFER_VERSION; }

absl::StatusOr<std::unique_ptr<FlashInferFinalize>> FlashInferFinalize::Create(int world,
                                                                               int tokens_max,
                                                                               int hidden) {
  auto result = std::unique_ptr<FlashInferFinalize>(new FlashInferFinalize());
  result->world_ = world;
  // The layout that its workspace function builds: per rank a data buffer and barrier flags (unused
  // here), three Lamport arenas, and a private block of counters.
  const int64_t arena = int64_t{2} * world * tokens_max * hidden;
  std::vector<void*> arenas(world);
  std::vector<void*> flags(world);
  for (int rank = 0; rank < world; ++rank) {
    STOKER_CUDA(cudaMalloc(&arenas[rank], 3 * arena));
    result->buffers_.push_back(arenas[rank]);
    // Negative zeros of a 16-bit type: 0x8000 in each half.
    const std::vector<uint16_t> empty(static_cast<size_t>(3 * arena / 2), 0x8000);
    STOKER_CUDA(cudaMemcpy(arenas[rank], empty.data(), 3 * arena, cudaMemcpyHostToDevice));
    STOKER_CUDA(cudaMalloc(&flags[rank], 256 * 8 * 4));
    result->buffers_.push_back(flags[rank]);
    STOKER_CUDA(cudaMemset(flags[rank], 0, 256 * 8 * 4));
  }
  for (int rank = 0; rank < world; ++rank) {
    const int32_t counters[5] = {0, 0, 0, static_cast<int32_t>(arena), 0};
    void* block = nullptr;
    STOKER_CUDA(cudaMalloc(&block, sizeof(counters)));
    result->buffers_.push_back(block);
    STOKER_CUDA(cudaMemcpy(block, counters, sizeof(counters), cudaMemcpyHostToDevice));
    std::vector<void*> table(3 * world + 1);
    for (int r = 0; r < world; ++r) {
      table[r] = arenas[r];
      table[world + r] = flags[r];
      table[2 * world + r] = arenas[r];
    }
    table[3 * world] = block;
    void* device_table = nullptr;
    STOKER_CUDA(cudaMalloc(&device_table, table.size() * sizeof(void*)));
    result->buffers_.push_back(device_table);
    STOKER_CUDA(cudaMemcpy(device_table, table.data(), table.size() * sizeof(void*),
                           cudaMemcpyHostToDevice));
    result->tables_.push_back(static_cast<void**>(device_table));
  }
  return result;
}

FlashInferFinalize::~FlashInferFinalize() {
  for (void* buffer : buffers_) cudaFree(buffer);
}

absl::Status FlashInferFinalize::Launch(int rank, const moe::Shape& shape,
                                        const moe::FinalizeArguments& finalize,
                                        const moe::NormArguments& norm, bool programmatic,
                                        cudaStream_t stream) {
  if (shape.wire_type == comm::WireType::kBf16) {
    return LaunchAs<__nv_bfloat16>(world_, rank, tables_[rank], shape, finalize, norm, programmatic,
                                   stream);
  }
  return LaunchAs<half>(world_, rank, tables_[rank], shape, finalize, norm, programmatic, stream);
}

}  // namespace stoker::bench
