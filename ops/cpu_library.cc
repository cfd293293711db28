// libstoker_cpu.so: the schemas of all ops, and their CPU implementations on CPU ranks.
#include <torch/csrc/stable/library.h>

#include "comm/cpu_communicator.h"
#include "moe/fused_cpu.h"
#include "moe/local_finalize_cpu.h"
#include "ops/communicator_registry.h"
#include "ops/fused_ops.h"
#include "ops/offload_ops.h"
#include "ops/schemas.h"

namespace stoker::ops {
namespace {

struct CpuDevice {
  using Communicator = comm::CpuCommunicator;
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(const comm::GroupOptions& options,
                                                              const StokerGroup&,
                                                              comm::RankExchange& exchange) {
    return comm::CpuCommunicator::Create(options, exchange);
  }
  static absl::Status Finalize(int64_t handle, const FinalizeCall& call,
                               const moe::LaunchOptions& options) {
    auto member = Registry<Communicator>::Get().Find(handle);
    if (!member.ok()) return member.status();
    absl::MutexLock lock(&(*member)->launching);
    return moe::MoeFinalizeAllReduceRmsNorm(*(*member)->communicator, call.shape, call.finalize,
                                            call.norm, options);
  }
  static absl::Status Reduction(int64_t handle, const ReductionCall& call,
                                const moe::LaunchOptions& options) {
    auto member = Registry<Communicator>::Get().Find(handle);
    if (!member.ok()) return member.status();
    absl::MutexLock lock(&(*member)->launching);
    return moe::MoeReduceAllReduceRmsNorm(*(*member)->communicator, call.shape, call.reduction,
                                          call.norm, options);
  }
  static absl::Status Plain(int64_t handle, const PlainCall& call,
                            const moe::LaunchOptions& options) {
    auto member = Registry<Communicator>::Get().Find(handle);
    if (!member.ok()) return member.status();
    absl::MutexLock lock(&(*member)->launching);
    return moe::AllReduceRmsNorm(*(*member)->communicator, call.shape, call.input, call.norm,
                                 options);
  }
  static absl::Status AllReduce(int64_t handle, const AllReduceCall& call,
                                const moe::LaunchOptions& options) {
    auto member = Registry<Communicator>::Get().Find(handle);
    if (!member.ok()) return member.status();
    absl::MutexLock lock(&(*member)->launching);
    return moe::AllReduce(*(*member)->communicator, call.shape, call.input, call.output, options);
  }
  static std::string NameRank(int64_t handle) { return ops::NameRank<Communicator>(handle); }
  static absl::Status LocalFinalize(const LocalFinalizeCall& call) {
    return moe::MoeFinalizeOnCpu(call.shape, call.finalize, call.output);
  }
};

}  // namespace
}  // namespace stoker::ops

STABLE_TORCH_LIBRARY(stoker, m) {
  for (const char* schema : stoker::ops::kSchemas) m.def(schema);
}
STABLE_TORCH_LIBRARY_IMPL(stoker, CPU, m) {
  m.impl("offload_experts", TORCH_BOX(&stoker::ops::OffloadExperts));
}
STOKER_REGISTER_FUSED_OPS(CPU, stoker::ops::CpuDevice)
STOKER_DEFINE_COMMUNICATOR_API(stoker::ops::CpuDevice)
