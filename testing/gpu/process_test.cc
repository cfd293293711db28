// Ranks as processes that share one GPU (CUDA IPC, Unix sockets): concurrent under MPS, time-sliced
// without. The parent never touches CUDA, so that it can fork.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/cuda_communicator.h"
#include "comm/socket_exchange.h"
#include "moe/fused_cuda.h"
#include "testing/comparers.h"
#include "testing/gpu/launch_cases.h"
#include "testing/inputs.h"
#include "testing/rank_processes.h"
#include "testing/stream_world.h"
#include "testing/unique_name.h"

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
  options.name = UniqueName("gpu-test");
  options.capacity = kLaunchCasesTokensMax;
  options.hidden_max = kLaunchCasesHiddenMax;
  options.timeout = options.startup_timeout = launch_timeout;
  return RunRankProcesses(world, absl::Seconds(200), [&](int rank) -> absl::Status {
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

// 64-bit FNV-1a of both outputs.
uint64_t HashOf(const moe::NormResult& result) {
  uint64_t hash = 14695981039346656037ull;
  for (const moe::Rows* rows : {&result.residual_out, &result.norm_out}) {
    for (const uint16_t element : *rows) hash = (hash ^ element) * 1099511628211ull;
  }
  return hash;
}

// Rank 0 compares its outputs with the reference, bit for bit, and the others' hashes with its own.
absl::Status CompareAll(comm::RankExchange& exchange, const moe::Shape& shape,
                        const DeviceInputs& device,
                        const std::function<moe::NormResult()>& expected) {
  STOKER_ASSIGN_OR_RETURN(const moe::NormResult actual, device.Download());
  absl::Status mine;
  if (exchange.rank() == 0) {
    const moe::NormResult right = expected();
    const std::string difference =
        DifferenceInBits(shape, right.residual_out, actual.residual_out) +
        DifferenceInBits(shape, right.norm_out, actual.norm_out);
    if (!difference.empty()) mine = absl::DataLossError(difference);
  }
  const std::string hash = absl::StrCat(HashOf(actual));
  STOKER_ASSIGN_OR_RETURN(const std::vector<std::string> hashes,
                          exchange.AllGather("outputs", hash, absl::Seconds(60)));
  if (hash != hashes[0]) mine = absl::DataLossError("other bits than rank 0");
  return exchange.AllSucceeded("comparison", mine, absl::Seconds(60));
}

// One case of the matrix on this rank, and where it is not captured the reduction and the plain
// all-reduce of the same shape.
absl::Status RunCase(comm::CudaCommunicator& communicator, comm::RankExchange& exchange,
                     const LaunchCase& c, cudaStream_t stream) {
  const moe::Shape& shape = c.inputs.shape;
  const int rank = exchange.rank();
  const Inputs inputs = MakeInputs(c.inputs, rank);
  STOKER_ASSIGN_OR_RETURN(DeviceInputs device, DeviceInputs::Upload(inputs, shape));
  STOKER_RETURN_IF_ERROR(device.Poison(stream));
  const auto finalize = [&] {
    return moe::MoeFinalizeAllReduceRmsNorm(communicator, shape, device.finalize(), device.norm(),
                                            c.launch, stream);
  };
  const auto finish = [&](const InputOptions& options) -> absl::Status {
    STOKER_CUDA(cudaStreamSynchronize(stream));
    STOKER_RETURN_IF_ERROR(communicator.Health());
    return CompareAll(exchange, shape, device,
                      [&] { return Expected(shape, MakeAllInputs(options, exchange.world())); });
  };
  if (!c.graph) {
    STOKER_RETURN_IF_ERROR(finalize());
    STOKER_RETURN_IF_ERROR(finish(c.inputs));
    STOKER_RETURN_IF_ERROR(device.Poison(stream));
    STOKER_RETURN_IF_ERROR(moe::MoeReduceAllReduceRmsNorm(communicator, shape, device.reduction(),
                                                          device.norm(), c.launch, stream));
    STOKER_CUDA(cudaStreamSynchronize(stream));
    STOKER_RETURN_IF_ERROR(CompareAll(exchange, shape, device, [&] {
      return ExpectedOfReduction(shape, MakeAllInputs(c.inputs, exchange.world()));
    }));
    STOKER_RETURN_IF_ERROR(device.Poison(stream));
    STOKER_RETURN_IF_ERROR(moe::AllReduceRmsNorm(communicator, shape, device.finalize().rows,
                                                 device.norm(), c.launch, stream));
    STOKER_CUDA(cudaStreamSynchronize(stream));
    return CompareAll(exchange, shape, device, [&] {
      const std::vector<Inputs> all = MakeAllInputs(c.inputs, exchange.world());
      std::vector<moe::Rows> partials;
      for (const Inputs& in : all) {
        partials.emplace_back(in.rows.begin(),
                              in.rows.begin() + int64_t{shape.tokens} * shape.hidden);
      }
      return moe::ReferenceSumAndNorm(shape, partials, all[0].norm);
    });
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  STOKER_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  absl::Status captured;
  for (int i = 0; i < 3; ++i) captured.Update(finalize());
  STOKER_CUDA(cudaStreamEndCapture(stream, &graph));
  STOKER_RETURN_IF_ERROR(captured);
  STOKER_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  STOKER_CUDA(cudaGraphDestroy(graph));
  STOKER_CUDA(cudaGraphLaunch(replay, stream));
  STOKER_RETURN_IF_ERROR(finish(c.inputs));
  STOKER_ASSIGN_OR_RETURN(const DeviceInputs other,
                          DeviceInputs::Upload(MakeInputs(c.other_inputs, rank), shape));
  STOKER_RETURN_IF_ERROR(device.CopyInputs(other, stream));
  STOKER_RETURN_IF_ERROR(device.Poison(stream));
  STOKER_CUDA(cudaGraphLaunch(replay, stream));
  STOKER_CUDA(cudaGraphLaunch(replay, stream));
  STOKER_RETURN_IF_ERROR(finish(c.other_inputs));
  return CudaStatus(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
}

TEST_P(GpuProcesses, HaveTheReferencesBitsInEveryCase) {
  const auto outcomes = RunGpuProcesses(
      GetParam(), absl::Seconds(30),
      [](comm::CudaCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        cudaStream_t stream = nullptr;
        STOKER_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        int cases = 0;
        for (const LaunchCase& c : LaunchCases()) {
          if (c.world != exchange.world()) continue;
          const absl::Status status = RunCase(communicator, exchange, c, stream);
          if (!status.ok()) {
            return absl::Status(status.code(), absl::StrCat(c.name, ": ", status.message()));
          }
          ++cases;
        }
        if (exchange.rank() == 0) std::printf("world %d: %d cases\n", exchange.world(), cases);
        return CudaStatus(cudaStreamDestroy(stream), "cudaStreamDestroy");
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

TEST_P(GpuProcesses, SigtermReleasesAllRanksWithinASecond) {
  const auto outcomes = RunGpuProcesses(
      GetParam(), absl::Seconds(60),
      [](comm::CudaCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        InputOptions options;
        options.shape = {4, 2880, comm::WireType::kBf16};
        STOKER_RETURN_IF_ERROR(LaunchAndCompare(communicator, options, 1));
        STOKER_RETURN_IF_ERROR(exchange.Barrier("warm", absl::Seconds(60)));
        const absl::Time start = absl::Now();
        if (communicator.plan().rank == 1) {
          absl::SleepFor(absl::Milliseconds(500));
          kill(getpid(), SIGTERM);
          absl::SleepFor(absl::Seconds(30));
          return absl::InternalError("SIGTERM did not end the process");
        }
        const absl::Status status = LaunchAndCompare(communicator, options, 1);
        const bool released = status.code() == absl::StatusCode::kAborted &&
                              absl::StrContains(status.message(), "host of rank 1") &&
                              absl::Now() - start < absl::Milliseconds(1500);
        if (!released) std::fprintf(stderr, "not released: %s\n", status.ToString().c_str());
        _exit(released ? 0 : 1);  // nobody comes to Close
      });
  for (int rank = 0; rank < GetParam(); ++rank) {
    const absl::string_view wanted = rank == 1 ? "signal 15" : "status 0 ";
    EXPECT_TRUE(absl::StrContains(outcomes[rank].status.message(), wanted))
        << "rank " << rank << ": " << outcomes[rank].status;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, GpuProcesses, ::testing::Values(2, 3, 4, 7, 8),
                         [](const auto& info) { return absl::StrCat("world", info.param); });

}  // namespace
}  // namespace stoker::testing
