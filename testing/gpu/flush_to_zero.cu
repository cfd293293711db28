#include "moe/kernel_entry.cuh"
#include "testing/gpu/flush_to_zero.h"

namespace stoker::testing {
namespace {

// Names of their own: the shipped kernels are in the same program.
template <class T, int kVectors>
__global__ void __launch_bounds__(moe::kThreadsMax, 1)
    FlushToZeroKernel(const __grid_constant__ comm::ExchangeParams params,
                      const __grid_constant__ moe::PlainParams producer_params,
                      const __grid_constant__ moe::RmsNormParams epilogue_params) {
  moe::PlainProducer<T> producer(producer_params);
  moe::RmsNormEpilogue<T, kVectors> epilogue(epilogue_params);
  comm::RunLaunch<comm::OneShot<T, 2>, kVectors>(comm::CudaEnvironment(), params, producer,
                                                 epilogue);
}

}  // namespace

const void* FlushToZeroPlainKernel(comm::WireType type, int vectors) {
  if (type == comm::WireType::kBf16) {
    return vectors == 1 ? reinterpret_cast<const void*>(FlushToZeroKernel<comm::Bf16, 1>)
                        : reinterpret_cast<const void*>(FlushToZeroKernel<comm::Bf16, 2>);
  }
  return vectors == 1 ? reinterpret_cast<const void*>(FlushToZeroKernel<comm::Fp16, 1>)
                      : reinterpret_cast<const void*>(FlushToZeroKernel<comm::Fp16, 2>);
}

}  // namespace stoker::testing
