#include "comm/cuda_environment.cuh"
#include "comm/one_shot.h"
#include "comm/two_shot.h"
#include "moe/kernel_entry.cuh"
#include "testing/gpu/one_grid.h"

namespace stoker::testing {
namespace {

class OneGridEnvironment : public comm::CudaEnvironment {
 public:
  __device__ int cta() const { return blockIdx.x % ctas(); }
  __device__ int ctas() const { return gridDim.x / kOneGridWorld; }
  __device__ int cluster() const { return cta(); }
  __device__ int clusters() const { return ctas(); }
  __device__ int cluster_rank() const { return 0; }
  __device__ int cluster_size() const { return 1; }
  __device__ void ClusterArrive() {}
  __device__ void ClusterWait() { SyncBlock(); }
};

template <template <class, int> class Exchange>
__global__ void __launch_bounds__(moe::kThreadsMax, 1)
    OneGridKernel(const __grid_constant__ OneGridParams p) {
  const int rank = blockIdx.x / (gridDim.x / kOneGridWorld);
  moe::FinalizeProducer<comm::Bf16> producer(p.finalize[rank]);
  moe::RmsNormEpilogue<comm::Bf16, 1> epilogue(p.norm[rank]);
  comm::RunLaunch<Exchange<comm::Bf16, kOneGridWorld>, 1>(OneGridEnvironment(), p.exchange[rank],
                                                          producer, epilogue);
}

}  // namespace

cudaError_t LaunchOneGrid(comm::Protocol protocol, const OneGridParams& params, int row_threads,
                          int ctas, cudaStream_t stream) {
  OneGridParams copy = params;
  void* arguments[] = {&copy};
  const void* kernel = protocol == comm::Protocol::kOneShot
                           ? reinterpret_cast<const void*>(OneGridKernel<comm::OneShot>)
                           : reinterpret_cast<const void*>(OneGridKernel<comm::TwoShot>);
  return cudaLaunchCooperativeKernel(kernel, dim3(ctas * kOneGridWorld), dim3(row_threads + 32),
                                     arguments, 0, stream);
}

}  // namespace stoker::testing
