// Ranks as processes that share one GPU (CUDA IPC, Unix sockets): concurrent under MPS, time-sliced
// without. The parent never touches CUDA, so that it can fork.
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/cuda_communicator.h"
#include "comm/socket_exchange.h"
#include "moe/fused_cuda.h"
#include "testing/comparers.h"
#include "testing/inputs.h"
#include "testing/rank_processes.h"
#include "testing/stream_world.h"

namespace stoker::testing {
namespace {

// Looks in a child, so that this process stays free of CUDA.
bool GpuIsThere() {
  const auto outcomes = RunRankProcesses(1, absl::Seconds(60), [](int) {
    return HasGpu() ? absl::OkStatus() : absl::UnavailableError("no GPU");
  });
  return AllReturnedOk(outcomes).ok();
}

using RankMain = std::function<absl::Status(comm::CudaCommunicator&, comm::RankExchange&)>;

std::vector<RankOutcome> RunGpuProcesses(int world, absl::Duration launch_timeout,
                                         const RankMain& rank_main) {
  comm::GroupOptions options;
  options.name = absl::StrCat("gpu-test-", getpid());
  options.capacity = 64;
  options.hidden_max = 7168;
  options.timeout = options.startup_timeout = launch_timeout;
  return RunRankProcesses(world, absl::Seconds(120), [&](int rank) -> absl::Status {
    STOKER_ASSIGN_OR_RETURN(std::unique_ptr<comm::RankExchange> exchange,
                            comm::MakeSocketExchange(options.name, rank, world, absl::Seconds(60)));
    STOKER_ASSIGN_OR_RETURN(
        std::unique_ptr<comm::CudaCommunicator> communicator,
        comm::CudaCommunicator::Create(options, comm::CudaOptions{.device = 0}, *exchange));
    STOKER_RETURN_IF_ERROR(rank_main(*communicator, *exchange));
    return communicator->Close(*exchange, absl::Seconds(30));
  });
}

// Launches `launches` times and compares the last outputs with the reference.
absl::Status LaunchAndCompare(comm::CudaCommunicator& communicator, const InputOptions& options,
                              int launches) {
  const std::vector<Inputs> ranks = MakeAllInputs(options, communicator.plan().world);
  STOKER_ASSIGN_OR_RETURN(DeviceInputs device,
                          DeviceInputs::Upload(ranks[communicator.plan().rank], options.shape));
  cudaStream_t stream = nullptr;
  STOKER_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < launches; ++i) {
    STOKER_RETURN_IF_ERROR(moe::MoeFinalizeAllReduceRmsNorm(
        communicator, options.shape, device.finalize(), device.norm(),
        {.programmatic_launch = i % 2 == 1}, stream));
  }
  STOKER_CUDA(cudaStreamSynchronize(stream));
  STOKER_CUDA(cudaStreamDestroy(stream));
  STOKER_RETURN_IF_ERROR(communicator.Health());
  STOKER_ASSIGN_OR_RETURN(const moe::NormResult actual, device.Download());
  const moe::NormResult expected = Expected(options.shape, ranks);
  const std::string difference =
      DifferenceInBits(options.shape, expected.residual_out, actual.residual_out) +
      DifferenceInBits(options.shape, expected.norm_out, actual.norm_out);
  return difference.empty() ? absl::OkStatus() : absl::DataLossError(difference);
}

class GpuProcesses : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!GpuIsThere()) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(GpuProcesses, HaveTheReferencesBits) {
  const auto outcomes = RunGpuProcesses(
      GetParam(), absl::Seconds(30),
      [](comm::CudaCommunicator& communicator, comm::RankExchange&) -> absl::Status {
        uint64_t seed = 1;
        for (int tokens : {0, 1, 7, 16, 33, 64}) {
          for (int hidden : {2880, 7168}) {
            InputOptions options;
            options.shape = {tokens, hidden,
                             seed % 2 == 0 ? comm::WireType::kFp16 : comm::WireType::kBf16};
            options.dropped_routes = true;
            options.special_values = seed % 3 == 0;
            options.cold = seed % 2 == 0;
            options.seed = seed++;
            STOKER_RETURN_IF_ERROR(LaunchAndCompare(communicator, options, 10));
          }
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

TEST_P(GpuProcesses, ARankThatNeverLaunchesIsNamedAndResetBringsTheGroupBack) {
  const auto outcomes = RunGpuProcesses(
      GetParam(), absl::Milliseconds(500),
      [](comm::CudaCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        InputOptions options;
        options.shape = {4, 2880, comm::WireType::kBf16};
        const bool missing = communicator.plan().rank == 1;
        if (!missing) {
          const absl::Status failure = LaunchAndCompare(communicator, options, 1);
          if (failure.message().find("for rank 1") == std::string::npos) {
            return absl::InternalError(absl::StrCat("not reported: ", failure.ToString()));
          }
        }
        STOKER_RETURN_IF_ERROR(exchange.Barrier("failed", absl::Seconds(30)));
        STOKER_RETURN_IF_ERROR(communicator.Reset(exchange, absl::Seconds(30)));
        STOKER_RETURN_IF_ERROR(communicator.SetTimeout(absl::Seconds(30)));
        return LaunchAndCompare(communicator, options, 200);
      });
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

INSTANTIATE_TEST_SUITE_P(Worlds, GpuProcesses, ::testing::Values(2, 4),
                         [](const auto& info) { return absl::StrCat("world", info.param); });

}  // namespace
}  // namespace stoker::testing
