#include "moe/cuda_launch.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "moe/kernels.h"
#include "moe/make_params.h"

namespace stoker::moe {
namespace {

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

comm::Placement PlacementOf(const comm::CudaCommunicator& communicator,
                            const LaunchOptions& options) {
  comm::Placement placement = communicator.placement();
  placement.launches_in_flight = options.early_trigger ? 2 : 1;
  return placement;
}

}  // namespace

absl::Status Launch(comm::CudaCommunicator& communicator, const KernelLaunch& work,
                    const LaunchOptions& options, cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(communicator.BeforeLaunch(stream));
  const Shape& shape = work.shape;
  comm::ExchangeParams params =
      MakeExchangeParams(communicator.Params(), shape, work.descriptor, options);
  if (work.call_tokens != shape.tokens) {
    params.signature = comm::SignatureOfCall(work.descriptor, work.call_tokens);
    params.log.signature = params.signature;
    params.log.tokens = work.call_tokens;
  }

  comm::LaunchShape launch =
      options.shape != nullptr
          ? *options.shape
          : comm::ChooseLaunchShape(work.exchange, communicator.plan().world, shape.tokens,
                                    shape.hidden / comm::kPacketElements,
                                    PlacementOf(communicator, options));
  const void* kernel = options.kernel;
  if (kernel == nullptr) {
    kernel = FindKernel({work.op, work.exchange, work.descriptor.wire_type,
                         communicator.plan().world, launch.vectors});
  }
  if (kernel == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no kernel for world ", communicator.plan().world, ", ", launch.vectors,
                     " vectors a thread and the ", comm::ProtocolName(work.exchange),
                     " exchange; two-shot needs more than two ranks"));
  }

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
  void* arguments[] = {&params, const_cast<void*>(work.producer), const_cast<void*>(work.epilogue)};
  STOKER_CUDA(cudaLaunchKernelExC(&config, kernel, arguments));
  return communicator.AfterLaunch(stream);
}

comm::Protocol ProtocolOf(const comm::CudaCommunicator& communicator, const Shape& shape,
                          const LaunchOptions& options) {
  return options.protocol.value_or(comm::ChooseProtocol(
      communicator.plan().world, shape.tokens, shape.hidden / comm::kPacketElements,
      PlacementOf(communicator, options), communicator.wire()));
}

comm::LaunchShape ShapeOf(const comm::CudaCommunicator& communicator, const Shape& shape,
                          const LaunchOptions& options) {
  if (options.shape != nullptr) return *options.shape;
  return comm::ChooseLaunchShape(
      ProtocolOf(communicator, shape, options), communicator.plan().world, shape.tokens,
      shape.hidden / comm::kPacketElements, PlacementOf(communicator, options));
}

}  // namespace stoker::moe
