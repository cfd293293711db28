#include "moe/fused_cuda.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "moe/descriptor.h"
#include "moe/kernel_params.h"
#include "moe/kernels.h"
#include "moe/validate.h"

namespace stoker::moe {
namespace {

RmsNormParams MakeNormParams(const Shape& shape, const NormArguments& norm) {
  RmsNormParams params{};
  params.residual_in = static_cast<const comm::Packet*>(norm.residual_in);
  params.gamma = norm.gamma;
  params.residual_out = static_cast<comm::Packet*>(norm.residual_out);
  params.norm_out = static_cast<comm::Packet*>(norm.norm_out);
  params.tokens = shape.tokens;
  params.packets = shape.hidden / comm::kPacketElements;
  params.inverse_hidden = 1.0f / static_cast<float>(shape.hidden);
  params.eps = norm.eps;
  params.weight_bias = norm.weight_bias;
  params.gamma_fp32 = norm.gamma_type == ScalarType::kFp32;
  params.fp32_residual = norm.mode == comm::Mode::kFp32Residual;
  return params;
}

// How many clusters of this shape the whole device can hold at once. The answer never changes, and
// asking takes microseconds, so it is kept.
absl::StatusOr<int> ClustersOnDevice(const void* kernel, int device,
                                     const cudaLaunchConfig_t& config, int cluster) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto* known = new std::map<std::tuple<const void*, int, unsigned, int>, int>();
  const auto key = std::make_tuple(kernel, device, config.blockDim.x, cluster);
  absl::MutexLock lock(&mutex);
  if (const auto found = known->find(key); found != known->end()) return found->second;
  int clusters = 0;
  if (cluster > 1) {
    STOKER_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  } else {
    int sms = 0;
    STOKER_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    STOKER_CUDA(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&clusters, kernel, config.blockDim.x, 0));
    clusters *= sms;
  }
  (*known)[key] = clusters;
  return clusters;
}

absl::Status Launch(comm::CudaCommunicator& communicator, const Shape& shape,
                    const comm::LaunchDescriptor& descriptor, void* producer_params,
                    const RmsNormParams& norm_params, const LaunchOptions& options,
                    cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(communicator.BeforeLaunch(stream));
  comm::OneShotParams params = communicator.Params();
  params.tokens = shape.tokens;
  params.packets = norm_params.packets;
  params.signature = comm::Signature(descriptor);
  params.early_trigger = options.early_trigger;
  params.log.descriptor = descriptor;
  params.log.signature = params.signature;
  params.log.tokens = shape.tokens;

  comm::LaunchShape launch = ShapeOf(communicator, shape, options);
  const void* kernel = options.kernel;
  if (kernel == nullptr) {
    kernel = FindKernel(
        {descriptor.op, descriptor.wire_type, communicator.plan().world, launch.vectors});
  }
  if (kernel == nullptr) return absl::InternalError("no kernel in the table for this launch");

  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.ctas());
  config.blockDim = dim3(launch.cta_threads());
  config.stream = stream;
  config.attrs = attributes;
  const bool clusters = communicator.placement().cluster_max > 1;
  if (clusters) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
    ++config.numAttrs;
  }
  int sms = 0;
  STOKER_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, communicator.device()));
  STOKER_ASSIGN_OR_RETURN(const int on_device,
                          ClustersOnDevice(kernel, communicator.device(), config, launch.cluster));
  const int in_flight = options.early_trigger ? 2 : 1;
  const int room = on_device * communicator.placement().sms / sms / in_flight;
  if (room < 1) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a launch of shape ", launch.ToString(), " does not fit ", communicator.placement().sms,
        " of ", sms, " SMs together with the group's other launches; raise the SM budget"));
  }
  launch.clusters = std::min(launch.clusters, room);
  config.gridDim = dim3(launch.ctas());
  if (options.programmatic_launch && clusters) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  void* arguments[] = {&params, producer_params, const_cast<RmsNormParams*>(&norm_params)};
  STOKER_CUDA(cudaLaunchKernelExC(&config, kernel, arguments));
  return communicator.AfterLaunch(stream);
}

}  // namespace

comm::LaunchShape ShapeOf(const comm::CudaCommunicator& communicator, const Shape& shape,
                          const LaunchOptions& options) {
  if (options.shape != nullptr) return *options.shape;
  comm::Placement placement = communicator.placement();
  placement.launches_in_flight = options.early_trigger ? 2 : 1;
  return comm::ChooseLaunchShape(shape.tokens, shape.hidden / comm::kPacketElements, placement);
}

absl::Status MoeFinalizeAllReduceRmsNorm(comm::CudaCommunicator& communicator, const Shape& shape,
                                         const FinalizeArguments& finalize,
                                         const NormArguments& norm, const LaunchOptions& options,
                                         cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(ValidateFinalize(communicator.plan(), shape, finalize, norm));
  const comm::LaunchDescriptor descriptor =
      DescribeFinalize(shape, finalize, norm, options, communicator.generation());
  FinalizeParams params{};
  params.rows = static_cast<const comm::Packet*>(finalize.rows);
  params.indices = finalize.indices;
  params.weights = finalize.weights;
  params.shared = static_cast<const comm::Packet*>(finalize.shared);
  params.cold = finalize.cold;
  params.row_count = finalize.row_count;
  params.packets = shape.hidden / comm::kPacketElements;
  params.top_k = finalize.top_k;
  params.routed_scaling_factor = finalize.routed_scaling_factor;
  params.weights_fp32 = finalize.weight_type == ScalarType::kFp32;
  params.cold_fp32 = finalize.cold_type == ScalarType::kFp32;
  return Launch(communicator, shape, descriptor, &params, MakeNormParams(shape, norm), options,
                stream);
}

absl::Status AllReduceRmsNorm(comm::CudaCommunicator& communicator, const Shape& shape,
                              const void* input, const NormArguments& norm,
                              const LaunchOptions& options, cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(ValidatePlain(communicator.plan(), shape, input, norm));
  const comm::LaunchDescriptor descriptor =
      DescribePlain(shape, norm, options, communicator.generation());
  PlainParams params{};
  params.input = static_cast<const comm::Packet*>(input);
  params.packets = shape.hidden / comm::kPacketElements;
  return Launch(communicator, shape, descriptor, &params, MakeNormParams(shape, norm), options,
                stream);
}

}  // namespace stoker::moe
