// libstoker_cuda.so: the CUDA implementations of the ops, on the stream that is torch's current
// one. The schemas are in libstoker_cpu.so, which must be loaded first.
#include <cuda_runtime_api.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "comm/cuda_communicator.h"
#include "moe/fused_cuda.h"
#include "moe/local_finalize.h"
#include "ops/communicator_registry.h"
#include "ops/fused_ops.h"

namespace stoker::ops {
namespace {

struct CudaDevice {
  using Communicator = comm::CudaCommunicator;
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(const comm::GroupOptions& options,
                                                              const StokerGroup& group,
                                                              comm::RankExchange& exchange) {
    comm::CudaOptions cuda;
    cuda.device = group.device;
    cuda.sm_budget = group.sm_budget;
    return comm::CudaCommunicator::Create(options, cuda, exchange);
  }

  template <class Launch>
  static absl::Status OnCurrentStream(int64_t handle, int32_t device, const Launch& launch) {
    auto member = Registry<Communicator>::Get().Find(handle);
    if (!member.ok()) return member.status();
    Communicator& communicator = *(*member)->communicator;
    if (device != communicator.device()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tensors are on cuda:", device, " and the communicator is on cuda:",
                       communicator.device(), "; move them, or create one on their device"));
    }
    void* stream = nullptr;
    if (aoti_torch_get_current_cuda_stream(communicator.device(), &stream) != 0) {
      return absl::InternalError("torch gave no current CUDA stream");
    }
    absl::MutexLock lock(&(*member)->launching);
    return launch(communicator, static_cast<cudaStream_t>(stream));
  }
  static absl::Status Finalize(int64_t handle, const FinalizeCall& call,
                               const moe::LaunchOptions& options) {
    return OnCurrentStream(
        handle, call.device, [&](Communicator& communicator, cudaStream_t stream) {
          return moe::MoeFinalizeAllReduceRmsNorm(communicator, call.shape, call.finalize,
                                                  call.norm, options, stream);
        });
  }
  static absl::Status Reduction(int64_t handle, const ReductionCall& call,
                                const moe::LaunchOptions& options) {
    return OnCurrentStream(
        handle, call.device, [&](Communicator& communicator, cudaStream_t stream) {
          return moe::MoeReduceAllReduceRmsNorm(communicator, call.shape, call.reduction, call.norm,
                                                options, stream);
        });
  }
  static absl::Status Plain(int64_t handle, const PlainCall& call,
                            const moe::LaunchOptions& options) {
    return OnCurrentStream(handle, call.device,
                           [&](Communicator& communicator, cudaStream_t stream) {
                             return moe::AllReduceRmsNorm(communicator, call.shape, call.input,
                                                          call.norm, options, stream);
                           });
  }
  static absl::Status AllReduce(int64_t handle, const AllReduceCall& call,
                                const moe::LaunchOptions& options) {
    return OnCurrentStream(
        handle, call.device, [&](Communicator& communicator, cudaStream_t stream) {
          return moe::AllReduce(communicator, call.shape, call.input, call.output, options, stream);
        });
  }
  static std::string NameRank(int64_t handle) { return ops::NameRank<Communicator>(handle); }
  static absl::Status LocalFinalize(const LocalFinalizeCall& call) {
    const torch::stable::accelerator::DeviceGuard guard(call.device);
    void* stream = nullptr;
    if (aoti_torch_get_current_cuda_stream(call.device, &stream) != 0) {
      return absl::InternalError("torch gave no current CUDA stream");
    }
    return moe::MoeFinalize(call.shape, call.finalize, call.output, call.programmatic_launch,
                            static_cast<cudaStream_t>(stream));
  }
};

}  // namespace
}  // namespace stoker::ops

STOKER_REGISTER_FUSED_OPS(CUDA, stoker::ops::CudaDevice)
STOKER_DEFINE_COMMUNICATOR_API(stoker::ops::CudaDevice)
