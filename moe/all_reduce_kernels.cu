#include "moe/kernel_entry.cuh"
#include "moe/kernel_table.h"
#include "moe/sum_epilogue.h"

namespace stoker::moe {

template <template <class, int> class Exchange, class T, int kRanks, int kVectors>
__global__ void __launch_bounds__(kThreadsMax, 1)
    AllReduceKernel(const __grid_constant__ comm::ExchangeParams params,
                    const __grid_constant__ PlainParams producer_params,
                    const __grid_constant__ SumParams epilogue_params) {
  PlainProducer<T> producer(producer_params);
  SumEpilogue<T, kVectors> epilogue(epilogue_params);
  comm::RunLaunch<Exchange<T, kRanks>, kVectors>(comm::CudaEnvironment(), params, producer,
                                                 epilogue);
}

namespace {

const KernelRow kTable[] = {
#define STOKER_KERNEL(kind, exchange, type, ranks, vectors) \
  KernelRow{                                                \
      comm::Op::k##kind,                                    \
      comm::Protocol::k##exchange,                          \
      comm::type::kType,                                    \
      ranks,                                                \
      vectors,                                              \
      reinterpret_cast<const void*>(AllReduceKernel<comm::exchange, comm::type, ranks, vectors>)},
#define STOKER_KERNELS_ALL_REDUCE
#include "moe/kernels.inc"
#undef STOKER_KERNEL
};

}  // namespace

std::span<const KernelRow> AllReduceKernels() { return kTable; }

}  // namespace stoker::moe
