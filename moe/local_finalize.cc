#include "moe/local_finalize.h"

#include "base/cuda_status.h"
#include "base/status.h"
#include "moe/local_finalize_kernel.h"
#include "moe/make_params.h"
#include "moe/validate.h"

namespace stoker::moe {
namespace {

// Percent of an SM's 228 KiB; rounded up to 8 KiB. An SM changes its split between L1 and shared
// memory only when it is idle. Where ranks share a GPU, three ranks' all-reduces can wait on every
// SM for the fourth's, whose finalize would wait for ever for an SM if it asked for another split
// than theirs.
constexpr int kSharedMemoryPercent = 3;

}  // namespace

absl::Status MoeFinalize(const Shape& shape, const FinalizeArguments& finalize, void* output,
                         bool programmatic_launch, cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(ValidateLocalFinalize(shape, finalize, output));
  if (shape.tokens == 0) return absl::OkStatus();
  FinalizeParams params = MakeFinalizeParams(shape, finalize);
  int ctas_per_token = (params.packets + kLocalFinalizeThreads - 1) / kLocalFinalizeThreads;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.tokens) * ctas_per_token);
  config.blockDim = dim3(kLocalFinalizeThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = programmatic_launch ? 1 : 0;
  const void* kernel = LocalFinalizeKernelOf(shape.wire_type);
  STOKER_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   kSharedMemoryPercent));
  auto* rows = static_cast<comm::Packet*>(output);
  void* arguments[] = {&params, &rows, &ctas_per_token};
  return CudaStatus(cudaLaunchKernelExC(&config, kernel, arguments), "local finalize");
}

}  // namespace stoker::moe
