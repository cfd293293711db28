#include "moe/fused_cuda.h"

#include "base/status.h"
#include "moe/cuda_launch.h"
#include "moe/make_params.h"
#include "moe/nccl_path.h"
#include "moe/validate.h"

namespace stoker::moe {
namespace {

// A whole call in one kernel, by the cheaper exchange.
absl::Status LaunchCall(comm::CudaCommunicator& communicator, const Shape& shape,
                        comm::LaunchDescriptor descriptor, const void* producer,
                        const void* epilogue, const LaunchOptions& options, cudaStream_t stream) {
  descriptor.protocol = ProtocolOf(communicator, shape, options);
  return Launch(communicator,
                {.shape = shape,
                 .call_tokens = shape.tokens,
                 .descriptor = descriptor,
                 .op = descriptor.op,
                 .exchange = descriptor.protocol,
                 .producer = producer,
                 .epilogue = epilogue},
                options, stream);
}

}  // namespace

absl::Status MoeFinalizeAllReduceRmsNorm(comm::CudaCommunicator& communicator, const Shape& shape,
                                         const FinalizeArguments& finalize,
                                         const NormArguments& norm, const LaunchOptions& options,
                                         cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(ValidateFinalize(communicator.plan(), shape, finalize, norm));
  const comm::LaunchDescriptor descriptor =
      DescribeFinalize(shape, finalize, norm, options, communicator.generation());
  if (communicator.plan().GoesToNccl(shape.tokens)) {
    return FinalizeThroughNccl(communicator, shape, descriptor, finalize, norm, stream);
  }
  const FinalizeParams params = MakeFinalizeParams(shape, finalize);
  const RmsNormParams epilogue = MakeNormParams(shape, norm);
  return LaunchCall(communicator, shape, descriptor, &params, &epilogue, options, stream);
}

absl::Status MoeReduceAllReduceRmsNorm(comm::CudaCommunicator& communicator, const Shape& shape,
                                       const ReductionArguments& reduction,
                                       const NormArguments& norm, const LaunchOptions& options,
                                       cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(ValidateReduction(communicator.plan(), shape, reduction, norm));
  const ReductionParams params = MakeReductionParams(shape, reduction);
  const RmsNormParams epilogue = MakeNormParams(shape, norm);
  return LaunchCall(communicator, shape,
                    DescribeReduction(shape, norm, options, communicator.generation()), &params,
                    &epilogue, options, stream);
}

absl::Status AllReduceRmsNorm(comm::CudaCommunicator& communicator, const Shape& shape,
                              const void* input, const NormArguments& norm,
                              const LaunchOptions& options, cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(ValidatePlain(communicator.plan(), shape, input, norm));
  const comm::LaunchDescriptor descriptor =
      DescribePlain(shape, norm, options, communicator.generation());
  if (communicator.plan().GoesToNccl(shape.tokens)) {
    return SumAndNormThroughNccl(communicator, shape, descriptor, input, norm, stream);
  }
  const PlainParams params = MakePlainParams(shape, input);
  const RmsNormParams epilogue = MakeNormParams(shape, norm);
  return LaunchCall(communicator, shape, descriptor, &params, &epilogue, options, stream);
}

absl::Status AllReduce(comm::CudaCommunicator& communicator, const Shape& shape, const void* input,
                       void* output, const LaunchOptions& options, cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(ValidateAllReduce(communicator.plan(), shape, input, output));
  const comm::LaunchDescriptor descriptor =
      DescribeAllReduce(shape, options, communicator.generation());
  if (communicator.plan().GoesToNccl(shape.tokens)) {
    return SumThroughNccl(communicator, shape, descriptor, input, output, stream);
  }
  const PlainParams params = MakePlainParams(shape, input);
  const SumParams epilogue = MakeSumParams(shape, output);
  return LaunchCall(communicator, shape, descriptor, &params, &epilogue, options, stream);
}

}  // namespace stoker::moe
