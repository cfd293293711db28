#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/cuda_environment.cuh"
#include "comm/mailbox.h"
#include "moe/finalize_producer.h"
#include "moe/local_finalize.h"
#include "moe/make_params.h"
#include "moe/validate.h"

namespace stoker::moe {
namespace {

constexpr int kThreads = 128;
constexpr int kCtasPerSm = 8;
// Percent of an SM's 228 KiB; rounded up to 8 KiB. An SM changes its split between L1 and shared
// memory only when it is idle. Where ranks share a GPU, three ranks' all-reduces can wait on every
// SM for the fourth's, whose finalize would wait for ever for an SM if it asked for another split
// than theirs.
constexpr int kSharedMemoryPercent = 3;

}  // namespace

// A CTA does kThreads vectors of one token; the CTAs of a token follow each other. Without the
// second bound ptxas makes do with 32 registers, for more CTAs than an SM ever gets, and has two
// rows in flight instead of eight.
template <class T>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    LocalFinalizeKernel(const __grid_constant__ FinalizeParams params, comm::Packet* output,
                        int ctas_per_token) {
  comm::CudaEnvironment env;
  const int token = env.cta() / ctas_per_token;
  comm::Vectors<1> vectors;
  vectors.index[0] = (env.cta() - token * ctas_per_token) * kThreads + env.thread();
  vectors.inside[0] = vectors.index[0] < params.packets;
  vectors.row_warps = kThreads / 32;
  FinalizeProducer<T> producer(params);
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

absl::Status MoeFinalize(const Shape& shape, const FinalizeArguments& finalize, void* output,
                         bool programmatic_launch, cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(ValidateLocalFinalize(shape, finalize, output));
  if (shape.tokens == 0) return absl::OkStatus();
  const FinalizeParams params = MakeFinalizeParams(shape, finalize);
  const int ctas_per_token = (params.packets + kThreads - 1) / kThreads;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.tokens) * ctas_per_token);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = programmatic_launch ? 1 : 0;
  auto* kernel = shape.wire_type == comm::WireType::kBf16 ? LocalFinalizeKernel<comm::Bf16>
                                                          : LocalFinalizeKernel<comm::Fp16>;
  STOKER_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   kSharedMemoryPercent));
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, params, static_cast<comm::Packet*>(output),
                                       ctas_per_token),
                    "local finalize");
}

}  // namespace stoker::moe
