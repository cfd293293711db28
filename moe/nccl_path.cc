#include "moe/nccl_path.h"

#include "base/status.h"
#include "moe/cuda_launch.h"
#include "moe/local_finalize.h"
#include "moe/make_params.h"

namespace stoker::moe {
namespace {

// Headers alone: the ranks agree on the call, or it fails here. With `output`, that becomes NaN if
// the group has failed.
absl::Status CompareHeaders(comm::CudaCommunicator& communicator, const Shape& shape,
                            const comm::LaunchDescriptor& descriptor, void* output,
                            cudaStream_t stream) {
  Shape none = shape;
  none.tokens = 0;
  const PlainParams producer = MakePlainParams(none, nullptr);
  const SumParams epilogue = MakeSumParams(output == nullptr ? none : shape, output);
  return Launch(communicator,
                {.shape = none,
                 .call_tokens = shape.tokens,
                 .descriptor = descriptor,
                 .op = comm::Op::kAllReduce,
                 .exchange = comm::Protocol::kOneShot,
                 .producer = &producer,
                 .epilogue = &epilogue},
                {}, stream);
}

// residual_out and norm_out from the sums, which lie in norm_out.
absl::Status Norm(comm::CudaCommunicator& communicator, const Shape& shape,
                  const comm::LaunchDescriptor& descriptor, const NormArguments& norm,
                  cudaStream_t stream) {
  const PlainParams producer = MakePlainParams(shape, norm.norm_out);
  const RmsNormParams epilogue = MakeNormParams(shape, norm);
  return Launch(communicator,
                {.shape = shape,
                 .call_tokens = shape.tokens,
                 .descriptor = descriptor,
                 .op = comm::Op::kPlain,
                 .exchange = comm::Protocol::kNccl,
                 .producer = &producer,
                 .epilogue = &epilogue},
                {}, stream);
}

absl::Status Sum(comm::CudaCommunicator& communicator, const Shape& shape, const void* input,
                 void* output, cudaStream_t stream) {
  return communicator.SumWithNccl(input, output, int64_t{shape.tokens} * shape.hidden,
                                  shape.wire_type, stream);
}

}  // namespace

absl::Status FinalizeThroughNccl(comm::CudaCommunicator& communicator, const Shape& shape,
                                 comm::LaunchDescriptor descriptor,
                                 const FinalizeArguments& finalize, const NormArguments& norm,
                                 cudaStream_t stream) {
  descriptor.protocol = comm::Protocol::kNccl;
  STOKER_RETURN_IF_ERROR(CompareHeaders(communicator, shape, descriptor, nullptr, stream));
  STOKER_RETURN_IF_ERROR(MoeFinalize(shape, finalize, norm.norm_out,
                                     /*programmatic_launch=*/false, stream));
  STOKER_RETURN_IF_ERROR(Sum(communicator, shape, norm.norm_out, norm.norm_out, stream));
  return Norm(communicator, shape, descriptor, norm, stream);
}

absl::Status SumAndNormThroughNccl(comm::CudaCommunicator& communicator, const Shape& shape,
                                   comm::LaunchDescriptor descriptor, const void* input,
                                   const NormArguments& norm, cudaStream_t stream) {
  descriptor.protocol = comm::Protocol::kNccl;
  STOKER_RETURN_IF_ERROR(CompareHeaders(communicator, shape, descriptor, nullptr, stream));
  STOKER_RETURN_IF_ERROR(Sum(communicator, shape, input, norm.norm_out, stream));
  return Norm(communicator, shape, descriptor, norm, stream);
}

absl::Status SumThroughNccl(comm::CudaCommunicator& communicator, const Shape& shape,
                            comm::LaunchDescriptor descriptor, const void* input, void* output,
                            cudaStream_t stream) {
  descriptor.protocol = comm::Protocol::kNccl;
  STOKER_RETURN_IF_ERROR(CompareHeaders(communicator, shape, descriptor, nullptr, stream));
  STOKER_RETURN_IF_ERROR(Sum(communicator, shape, input, output, stream));
  return CompareHeaders(communicator, shape, descriptor, output, stream);
}

}  // namespace stoker::moe
