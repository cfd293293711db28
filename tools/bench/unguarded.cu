#include "comm/one_shot.h"
#include "comm/two_shot.h"
#include "moe/kernel_entry.cuh"
#include "tools/bench/unguarded.h"
#include "tools/bench/unguarded_frame.cuh"

namespace stoker::bench {
namespace {

template <template <class, int> class Exchange, int kRanks, int kVectors>
__global__ void __launch_bounds__(moe::kThreadsMax, 1)
    UnguardedKernel(const __grid_constant__ comm::ExchangeParams params,
                    const __grid_constant__ moe::FinalizeParams producer_params,
                    const __grid_constant__ moe::RmsNormParams epilogue_params) {
  moe::FinalizeProducer<comm::Bf16> producer(producer_params);
  moe::RmsNormEpilogue<comm::Bf16, kVectors> epilogue(epilogue_params);
  RunUnguarded<Exchange<comm::Bf16, kRanks>, kVectors>(params, producer, epilogue);
}

template <template <class, int> class Exchange, int kRanks>
const void* KernelOf(int vectors) {
  switch (vectors) {
    case 1:
      return reinterpret_cast<const void*>(UnguardedKernel<Exchange, kRanks, 1>);
    case 2:
      return reinterpret_cast<const void*>(UnguardedKernel<Exchange, kRanks, 2>);
    default:
      return nullptr;
  }
}

}  // namespace

const void* UnguardedFinalizeKernel(comm::Protocol protocol, int world, int vectors) {
  if (world > 4) return nullptr;
  if (protocol == comm::Protocol::kTwoShot) return KernelOf<comm::TwoShot, 4>(vectors);
  return world <= 2 ? KernelOf<comm::OneShot, 2>(vectors) : KernelOf<comm::OneShot, 4>(vectors);
}

}  // namespace stoker::bench
