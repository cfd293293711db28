// The entry points: a producer, an exchange and an epilogue put together for one wire type, number
// of ranks and number of vectors a thread.
#pragma once

#include "comm/cuda_environment.cuh"
#include "comm/exchange_params.h"
#include "comm/launch_frame.h"
#include "comm/one_shot.h"
#include "comm/two_shot.h"
#include "moe/finalize_producer.h"
#include "moe/plain_producer.h"
#include "moe/rms_norm_epilogue.h"

namespace stoker::moe {

template <class T>
struct Finalize {
  using Params = FinalizeParams;
  using Producer = FinalizeProducer<T>;
};

template <class T>
struct Plain {
  using Params = PlainParams;
  using Producer = PlainProducer<T>;
};

// 64 registers a thread: one CTA of 32 warps or several smaller ones fill an SM whichever of its
// four register partitions their warps land in. At 72 registers two CTAs of 14 warps fit only if
// the second one's warps complement the first one's, and a grid sized for that was seen not to be
// co-resident.
inline constexpr int kThreadsMax = 1024;

template <template <class> class Kind, template <class, int> class Exchange, class T, int kRanks,
          int kVectors>
__global__ void __launch_bounds__(kThreadsMax, 1)
    FusedKernel(const __grid_constant__ comm::ExchangeParams params,
                const __grid_constant__ typename Kind<T>::Params producer_params,
                const __grid_constant__ RmsNormParams epilogue_params) {
  typename Kind<T>::Producer producer(producer_params);
  RmsNormEpilogue<T, kVectors> epilogue(epilogue_params);
  comm::RunLaunch<Exchange<T, kRanks>, kVectors>(comm::CudaEnvironment(), params, producer,
                                                 epilogue);
}

}  // namespace stoker::moe
