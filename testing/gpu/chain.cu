#include "comm/cuda_environment.cuh"
#include "testing/gpu/chain.h"

namespace stoker::testing {
namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 8;

// One block in four waits up to 8192 cycles, about 4 us.
__device__ void Delay() {
  uint32_t hash = static_cast<uint32_t>(clock64()) ^ (blockIdx.x * 2654435761u);
  hash = (hash ^ (hash >> 15)) * 0x2c1b3c6du;
  hash ^= hash >> 12;
  if ((hash & 3u) != 0u) return;
  const long long end = clock64() + (hash >> 19);
  while (clock64() < end) {
  }
}

__device__ void BeginWithDelay() {
  comm::CudaEnvironment environment;
  environment.LaunchDependents();
  Delay();
  environment.GridDependencyWait();
  Delay();
}

__global__ void Producer(const uint4* from, uint4* to, int64_t count) {
  BeginWithDelay();
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += kBlocks * kThreads) {
    to[i] = from[i];
  }
}

__global__ void Consumer(const uint4* actual, const uint4* expected, int64_t count,
                         unsigned long long* wrong) {
  BeginWithDelay();
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += kBlocks * kThreads) {
    const uint4 a = actual[i], e = expected[i];
    if (a.x != e.x || a.y != e.y || a.z != e.z || a.w != e.w) atomicAdd(wrong, 1ull);
  }
}

template <class... Parameters, class... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kBlocks);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace

cudaError_t LaunchProducer(const void* from, void* to, int64_t bytes, cudaStream_t stream) {
  return Launch(Producer, stream, static_cast<const uint4*>(from), static_cast<uint4*>(to),
                bytes / 16);
}

cudaError_t LaunchConsumer(const void* actual, const void* expected, int64_t bytes,
                           unsigned long long* wrong, cudaStream_t stream) {
  return Launch(Consumer, stream, static_cast<const uint4*>(actual),
                static_cast<const uint4*>(expected), bytes / 16, wrong);
}

}  // namespace stoker::testing
