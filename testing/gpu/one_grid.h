// All ranks of a launch as one cooperative grid: rank = block / blocks per rank. For
// compute-sanitizer, which runs one kernel at a time, so that ranks on streams would wait for each
// other for ever.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/exchange_params.h"
#include "moe/kernel_params.h"

namespace stoker::testing {

inline constexpr int kOneGridWorld = 2;

struct OneGridParams {
  comm::ExchangeParams exchange[kOneGridWorld];
  moe::FinalizeParams finalize[kOneGridWorld];
  moe::RmsNormParams norm[kOneGridWorld];
};

// bf16, one vector a thread, `row_threads` row threads and `ctas` CTAs a rank, no clusters.
cudaError_t LaunchOneGrid(comm::Protocol protocol, const OneGridParams& params, int row_threads,
                          int ctas, cudaStream_t stream);

}  // namespace stoker::testing
