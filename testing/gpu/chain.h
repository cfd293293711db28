// The neighbours of a fused launch in a chain of programmatic launches: a producer that writes its
// inputs and a consumer that checks its outputs, both with random delays. Each lets its successor
// start at once and waits for its predecessor before it touches memory, as the contract of
// programmatic launch asks (docs/decisions/protocol_safety.md).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace stoker::testing {

// Copies `bytes` (a multiple of 16) from `from` to `to`.
cudaError_t LaunchProducer(const void* from, void* to, int64_t bytes, cudaStream_t stream);

// Adds to `*wrong` for every 16 bytes of `actual` that differ from `expected`.
cudaError_t LaunchConsumer(const void* actual, const void* expected, int64_t bytes,
                           unsigned long long* wrong, cudaStream_t stream);

}  // namespace stoker::testing
