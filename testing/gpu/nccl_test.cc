// Calls through NCCL, ranks as processes of one GPU. NCCL refuses two ranks on a GPU of a host;
// until 2.30 the way around is that each rank names another host (NCCL_HOSTID), so that they talk
// over sockets, from 2.30 on NCCL_MULTI_RANK_GPU_ENABLE. Both are set here, for tests alone.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/cuda_communicator.h"
#include "comm/socket_exchange.h"
#include "comm/wire_type.h"
#include "moe/fused_cuda.h"
#include "testing/comparers.h"
#include "testing/inputs.h"
#include "testing/rank_processes.h"
#include "testing/stream_world.h"
#include "testing/unique_name.h"

namespace stoker::testing {
namespace {

constexpr int kCapacity = 8;
constexpr int kTokens = 300;  // beyond the capacity
constexpr int kHidden = 1344;

bool GpuIsThere() {
  const auto outcomes = RunRankProcesses(1, absl::Seconds(60), [](int) {
    return HasGpu() ? absl::OkStatus() : absl::UnavailableError("no GPU");
  });
  return AllReturnedOk(outcomes).ok();
}

void AllowRanksToShareTheGpu(int rank) {
  setenv("NCCL_HOSTID", absl::StrCat("stoker-test-", rank).c_str(), 1);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  setenv("NCCL_NET", "Socket", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

comm::GroupOptions Options(const std::string& name) {
  comm::GroupOptions options;
  options.name = name;
  options.capacity = kCapacity;
  options.hidden_max = kHidden;
  options.nccl_tokens_max = 512;
  options.timeout = options.startup_timeout = absl::Seconds(30);
  return options;
}

using RankMain = std::function<absl::Status(comm::CudaCommunicator&, comm::RankExchange&)>;

std::vector<RankOutcome> RunWithNccl(int world, const RankMain& rank_main) {
  const comm::GroupOptions options = Options(UniqueName("nccl-test"));
  return RunRankProcesses(world, absl::Seconds(100), [&](int rank) -> absl::Status {
    AllowRanksToShareTheGpu(rank);
    STOKER_ASSIGN_OR_RETURN(std::unique_ptr<comm::RankExchange> exchange,
                            comm::MakeSocketExchange(options.name, rank, world, absl::Seconds(60)));
    STOKER_ASSIGN_OR_RETURN(
        std::unique_ptr<comm::CudaCommunicator> communicator,
        comm::CudaCommunicator::Create(options, comm::CudaOptions{.device = 0}, *exchange));
    STOKER_RETURN_IF_ERROR(rank_main(*communicator, *exchange));
    return communicator->Close(*exchange, absl::Seconds(30));
  });
}

InputOptions Case(int tokens, uint32_t seed) {
  InputOptions options;
  options.shape = {tokens, kHidden, comm::WireType::kBf16};
  options.seed = seed;
  return options;
}

// With two ranks NCCL's sum is one addition and one rounding, as ours: the same bits.
absl::Status Compare(const InputOptions& options, int world, const DeviceInputs& device) {
  STOKER_ASSIGN_OR_RETURN(const moe::NormResult actual, device.Download());
  const moe::NormResult expected = Expected(options.shape, MakeAllInputs(options, world));
  const std::string difference =
      DifferenceInBits(options.shape, expected.residual_out, actual.residual_out) +
      DifferenceInBits(options.shape, expected.norm_out, actual.norm_out);
  return difference.empty() ? absl::OkStatus() : absl::DataLossError(difference);
}

absl::Status Finalize(comm::CudaCommunicator& communicator, const InputOptions& options,
                      const DeviceInputs& device, cudaStream_t stream) {
  return moe::MoeFinalizeAllReduceRmsNorm(communicator, options.shape, device.finalize(),
                                          device.norm(), {.site = 3}, stream);
}

absl::StatusOr<DeviceInputs> UploadFor(const InputOptions& options, int rank) {
  return DeviceInputs::Upload(MakeInputs(options, rank), options.shape);
}

// Few tokens and many in turn, eager.
absl::Status Eager(comm::CudaCommunicator& communicator, int world, int rank, cudaStream_t stream) {
  for (const int tokens : {kCapacity, kTokens, 1, kTokens, 512}) {
    const InputOptions options = Case(tokens, 11);
    STOKER_ASSIGN_OR_RETURN(DeviceInputs device, UploadFor(options, rank));
    STOKER_RETURN_IF_ERROR(device.Poison(stream));
    STOKER_RETURN_IF_ERROR(Finalize(communicator, options, device, stream));
    STOKER_CUDA(cudaStreamSynchronize(stream));
    STOKER_RETURN_IF_ERROR(communicator.Health());
    STOKER_RETURN_IF_ERROR(Compare(options, world, device));
  }
  return absl::OkStatus();
}

// A graph with a fused launch and one through NCCL, replayed with changed inputs.
absl::Status Graph(comm::CudaCommunicator& communicator, int world, int rank, cudaStream_t stream) {
  const InputOptions few = Case(kCapacity, 21), many = Case(kTokens, 22);
  STOKER_ASSIGN_OR_RETURN(DeviceInputs few_inputs, UploadFor(few, rank));
  STOKER_ASSIGN_OR_RETURN(DeviceInputs many_inputs, UploadFor(many, rank));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  STOKER_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  absl::Status captured = Finalize(communicator, few, few_inputs, stream);
  captured.Update(Finalize(communicator, many, many_inputs, stream));
  captured.Update(Finalize(communicator, few, few_inputs, stream));
  STOKER_CUDA(cudaStreamEndCapture(stream, &graph));
  STOKER_RETURN_IF_ERROR(captured);
  STOKER_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  for (uint32_t seed = 31; seed < 35; ++seed) {
    const InputOptions few_now = Case(kCapacity, seed), many_now = Case(kTokens, seed + 10);
    STOKER_ASSIGN_OR_RETURN(const DeviceInputs few_other, UploadFor(few_now, rank));
    STOKER_ASSIGN_OR_RETURN(const DeviceInputs many_other, UploadFor(many_now, rank));
    STOKER_RETURN_IF_ERROR(few_inputs.CopyInputs(few_other, stream));
    STOKER_RETURN_IF_ERROR(many_inputs.CopyInputs(many_other, stream));
    STOKER_RETURN_IF_ERROR(few_inputs.Poison(stream));
    STOKER_RETURN_IF_ERROR(many_inputs.Poison(stream));
    STOKER_CUDA(cudaGraphLaunch(replay, stream));
    STOKER_CUDA(cudaStreamSynchronize(stream));
    STOKER_RETURN_IF_ERROR(communicator.Health());
    STOKER_RETURN_IF_ERROR(Compare(few_now, world, few_inputs));
    STOKER_RETURN_IF_ERROR(Compare(many_now, world, many_inputs));
  }
  STOKER_CUDA(cudaGraphExecDestroy(replay));
  return CudaStatus(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

// The plain all-reduce on both ways: ones, twos, ... give their sum.
absl::Status PlainSum(comm::CudaCommunicator& communicator, int world, int rank,
                      cudaStream_t stream) {
  for (const int tokens : {kCapacity, kTokens}) {
    const moe::Shape shape{tokens, kHidden, comm::WireType::kBf16};
    const int64_t elements = int64_t{tokens} * kHidden;
    std::vector<uint16_t> values(elements, comm::Bf16::FromFloat(static_cast<float>(rank + 1)));
    void* rows = nullptr;
    STOKER_CUDA(cudaMalloc(&rows, elements * 2));
    STOKER_CUDA(cudaMemcpy(rows, values.data(), elements * 2, cudaMemcpyHostToDevice));
    STOKER_RETURN_IF_ERROR(moe::AllReduce(communicator, shape, rows, rows, {}, stream));
    STOKER_CUDA(cudaStreamSynchronize(stream));
    STOKER_RETURN_IF_ERROR(communicator.Health());
    STOKER_CUDA(cudaMemcpy(values.data(), rows, elements * 2, cudaMemcpyDeviceToHost));
    STOKER_CUDA(cudaFree(rows));
    const uint16_t wanted = comm::Bf16::FromFloat(world * (world + 1) / 2.0f);
    for (const uint16_t value : values) {
      if (value != wanted) {
        return absl::DataLossError(absl::StrCat(tokens, " tokens: ", value, " for ", wanted));
      }
    }
  }
  return absl::OkStatus();
}

class NcclProcesses : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!GpuIsThere()) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(NcclProcesses, CallsBeyondTheCapacityGoThroughNcclAlsoInGraphs) {
  const auto outcomes = RunWithNccl(
      GetParam(),
      [](comm::CudaCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        cudaStream_t stream = nullptr;
        STOKER_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        STOKER_RETURN_IF_ERROR(Eager(communicator, exchange.world(), exchange.rank(), stream));
        STOKER_RETURN_IF_ERROR(Graph(communicator, exchange.world(), exchange.rank(), stream));
        STOKER_RETURN_IF_ERROR(PlainSum(communicator, exchange.world(), exchange.rank(), stream));
        return CudaStatus(cudaStreamDestroy(stream), "cudaStreamDestroy");
      });
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

// Health, asked until it is not OK or the time is over.
absl::Status AwaitFailure(const comm::CudaCommunicator& communicator) {
  for (int look = 0; look < 200; ++look) {
    const absl::Status health = communicator.Health();
    if (!health.ok()) return health;
    absl::SleepFor(absl::Milliseconds(50));
  }
  return absl::OkStatus();
}

TEST_P(NcclProcesses, ARankThatDoesNotCallIsNamedNcclIsReleasedAndResetBringsItBack) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank has no peer";
  const auto outcomes = RunWithNccl(
      GetParam(),
      [](comm::CudaCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        const int rank = exchange.rank();
        cudaStream_t stream = nullptr;
        STOKER_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        STOKER_RETURN_IF_ERROR(communicator.SetTimeout(absl::Milliseconds(500)));
        const InputOptions options = Case(kTokens, 41);
        STOKER_ASSIGN_OR_RETURN(DeviceInputs device, UploadFor(options, rank));
        if (rank == 0) {
          STOKER_RETURN_IF_ERROR(device.Poison(stream));
          STOKER_RETURN_IF_ERROR(Finalize(communicator, options, device, stream));
          const absl::Status failure = AwaitFailure(communicator);
          if (failure.message().find("for rank 1") == std::string::npos) {
            return absl::InternalError(absl::StrCat("not reported: ", failure.ToString()));
          }
          STOKER_CUDA(cudaStreamSynchronize(stream));  // NCCL's kernel has been released
          STOKER_ASSIGN_OR_RETURN(const moe::NormResult result, device.Download());
          for (const uint16_t element : result.norm_out) {
            if (element != comm::kStoredNan) return absl::DataLossError("an output is not NaN");
          }
        }
        STOKER_RETURN_IF_ERROR(exchange.Barrier("failed", absl::Seconds(30)));
        STOKER_RETURN_IF_ERROR(communicator.Reset(exchange, absl::Seconds(30)));
        STOKER_RETURN_IF_ERROR(communicator.SetTimeout(absl::Seconds(30)));
        return Eager(communicator, exchange.world(), rank, stream);
      });
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

TEST_P(NcclProcesses, WithoutNcclACallBeyondTheCapacitySaysWhyItIsRefused) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank shares its GPU with none";
  comm::GroupOptions options = Options(UniqueName("nccl-test"));
  options.nccl_optional = true;
  const int world = GetParam();
  const auto outcomes = RunRankProcesses(world, absl::Seconds(60), [&](int rank) -> absl::Status {
    STOKER_ASSIGN_OR_RETURN(std::unique_ptr<comm::RankExchange> exchange,
                            comm::MakeSocketExchange(options.name, rank, world, absl::Seconds(60)));
    STOKER_ASSIGN_OR_RETURN(
        std::unique_ptr<comm::CudaCommunicator> communicator,
        comm::CudaCommunicator::Create(options, comm::CudaOptions{.device = 0}, *exchange));
    const InputOptions inputs = Case(kTokens, 51);
    STOKER_ASSIGN_OR_RETURN(DeviceInputs device, UploadFor(inputs, rank));
    const absl::Status refused = Finalize(*communicator, inputs, device, nullptr);
    if (refused.message().find("NCCL would take them, but") == std::string::npos) {
      return absl::InternalError(absl::StrCat("not refused: ", refused.ToString()));
    }
    return communicator->Close(*exchange, absl::Seconds(30));
  });
  EXPECT_TRUE(AllReturnedOk(outcomes).ok()) << AllReturnedOk(outcomes);
}

INSTANTIATE_TEST_SUITE_P(Worlds, NcclProcesses, ::testing::Values(1, 2),
                         [](const auto& info) { return absl::StrCat("world", info.param); });

}  // namespace
}  // namespace stoker::testing
