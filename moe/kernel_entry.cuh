// The entry points: a producer, the one-shot exchange and an epilogue put together for one wire
// type, number of ranks and number of vectors a thread.
#pragma once

#include "comm/cuda_environment.cuh"
#include "comm/one_shot.h"
#include "comm/one_shot_params.h"
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

// 896 threads hold a row of 7168 at one vector each and leave 72 registers. Without clusters one
// CTA must hold a row of 16384 at two vectors each.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define STOKER_THREADS_MAX 1024
#else
#define STOKER_THREADS_MAX 896
#endif

template <template <class> class Kind, class T, int kRanks, int kVectors>
__global__ void __launch_bounds__(STOKER_THREADS_MAX)
    OneShotKernel(const __grid_constant__ comm::OneShotParams params,
                  const __grid_constant__ typename Kind<T>::Params producer_params,
                  const __grid_constant__ RmsNormParams epilogue_params) {
  typename Kind<T>::Producer producer(producer_params);
  RmsNormEpilogue<T, kVectors> epilogue(epilogue_params);
  comm::OneShot<T, kRanks, kVectors>(comm::CudaEnvironment(), params, producer, epilogue);
}

}  // namespace stoker::moe
