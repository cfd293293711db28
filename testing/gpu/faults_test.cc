// Faults on one GPU: each ends in an error that names what happened on every rank, the outputs are
// NaN throughout, and after Reset the group is right again. The process and its CUDA context live
// on. These look at the words of reports; faults of all kinds are in testing/faults/.
#include <thread>

#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "comm/thread_exchange.h"
#include "testing/gpu/gpu_fixture.h"

namespace stoker::testing {
namespace {

constexpr int kWorld = 4;

InputOptions FaultOptions(uint64_t seed = 1) {
  InputOptions options;
  options.shape = {6, 2880, comm::WireType::kBf16};
  options.seed = seed;
  return options;
}

class Faults : public GpuTest {
 protected:
  void Create(absl::Duration timeout) {
    comm::GroupOptions group = GpuGroup(16, 2880, timeout);
    auto world = StreamWorld::Create(kWorld, group);
    ASSERT_TRUE(world.ok()) << world.status();
    world_ = std::move(*world);
    auto data = UploadAll(FaultOptions(), kWorld);
    ASSERT_TRUE(data.ok()) << data.status();
    data_ = std::move(*data);
  }

  absl::Status Launch(int rank, const moe::Shape& shape, const moe::LaunchOptions& options = {}) {
    return moe::MoeFinalizeAllReduceRmsNorm(
        world_->communicator(rank), shape, data_.device[rank].finalize(), data_.device[rank].norm(),
        options, world_->stream(rank));
  }

  void ExpectNan(int rank) {
    auto outputs = data_.device[rank].Download();
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    for (const moe::Rows* rows : {&outputs->residual_out, &outputs->norm_out}) {
      for (uint16_t element : *rows) ASSERT_EQ(element, comm::kStoredNan) << "rank " << rank;
    }
  }

  void ResetAndExpectRight(int launches) {
    STOKER_ASSERT_OK(
        world_->OnAllRanks([](comm::CudaCommunicator& c, comm::RankExchange& exchange) {
          return c.Reset(exchange, absl::Seconds(20));
        }));
    STOKER_ASSERT_OK(world_->communicator(0).Health());
    ExpectRight(launches);
  }

  void ExpectRight(int launches) {
    for (int i = 0; i < launches; ++i) {
      STOKER_ASSERT_OK(LaunchAll(*world_, FaultOptions().shape, data_.device,
                                 {.programmatic_launch = i % 2 == 1}));
    }
    STOKER_ASSERT_OK(world_->Synchronize(absl::Seconds(30)));
    EXPECT_EQ(
        Differences(FaultOptions().shape, Expected(FaultOptions().shape, data_.host), data_.device),
        "");
  }

  std::unique_ptr<StreamWorld> world_;
  RankData data_;
};

TEST_F(Faults, ARankThatNeverLaunchesIsNamedWithinTheDeadline) {
  Create(absl::Milliseconds(200));
  const absl::Time start = absl::Now();
  for (int rank : {0, 1, 3}) STOKER_ASSERT_OK(Launch(rank, FaultOptions().shape));
  STOKER_ASSERT_OK(world_->Synchronize(absl::Seconds(10)));
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(260));
  for (int rank = 0; rank < kWorld; ++rank) {
    const absl::Status report = world_->communicator(rank).Health();
    EXPECT_EQ(report.code(), absl::StatusCode::kDeadlineExceeded) << report;
    EXPECT_NE(report.message().find("for rank 2"), std::string::npos) << report;
    EXPECT_NE(report.message().find("rank 2 has not launched"), std::string::npos) << report;
    EXPECT_FALSE(Launch(rank, FaultOptions().shape).ok());
  }
  for (int rank : {0, 1, 3}) ExpectNan(rank);
  ResetAndExpectRight(10'000);
}

TEST_F(Faults, ARankThatCannotJoinIsToldToTheOthersAtOnce) {
  comm::GroupOptions group = GpuGroup(16, 2880, absl::Seconds(5));
  group.setup_timeout = absl::Seconds(60);
  std::vector<std::unique_ptr<comm::RankExchange>> exchanges = comm::MakeThreadExchanges(kWorld);
  std::vector<absl::Status> statuses(kWorld);
  const absl::Time start = absl::Now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      const comm::CudaOptions cuda{.device = rank == 1 ? 99 : 0};
      statuses[rank] = comm::CudaCommunicator::Create(group, cuda, *exchanges[rank]).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInvalidArgument) << statuses[1];
  for (int rank : {0, 2, 3}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kUnavailable) << statuses[rank];
    EXPECT_NE(statuses[rank].message().find("rank 1"), std::string::npos) << statuses[rank];
    EXPECT_NE(statuses[rank].message().find("device 99"), std::string::npos) << statuses[rank];
  }
}

TEST_F(Faults, SixTokensAgainstSevenIsReportedAtOnceWithBothLaunches) {
  Create(absl::Seconds(60));
  const absl::Time start = absl::Now();
  for (int rank = 0; rank < kWorld; ++rank) {
    moe::Shape shape = FaultOptions().shape;
    if (rank == 0) shape.tokens = 5;
    STOKER_ASSERT_OK(Launch(rank, shape));
  }
  STOKER_ASSERT_OK(world_->Synchronize(absl::Seconds(10)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  const absl::Status report = world_->communicator(3).Health();
  for (const char* part :
       {"launched different work", "finalize of 5 tokens", "finalize of 6 tokens"}) {
    EXPECT_NE(report.message().find(part), std::string::npos) << report;
  }
  ResetAndExpectRight(1000);
}

TEST_F(Faults, AMismatchIsReportedAlsoWhenNobodyWaitsForData) {
  Create(absl::Seconds(60));
  moe::Shape none = FaultOptions().shape;
  none.tokens = 0;
  for (int rank = 0; rank < kWorld; ++rank) {
    STOKER_ASSERT_OK(Launch(rank, none, {.site = rank == 1 ? 8u : 7u}));
  }
  STOKER_ASSERT_OK(world_->Synchronize(absl::Seconds(10)));
  const absl::Status report = world_->communicator(0).Health();
  EXPECT_NE(report.message().find("site 8"), std::string::npos) << report;
  ResetAndExpectRight(100);
}

TEST_F(Faults, AnIndexOutOfRangeIsNamed) {
  Create(absl::Seconds(5));
  const int32_t bad = 5000;
  int32_t* indices = const_cast<int32_t*>(data_.device[2].finalize().indices);
  int32_t good = 0;
  ASSERT_EQ(cudaMemcpy(&good, indices + 17, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(indices + 17, &bad, 4, cudaMemcpyHostToDevice), cudaSuccess);
  STOKER_ASSERT_OK(LaunchAll(*world_, FaultOptions().shape, data_.device, {}));
  STOKER_ASSERT_OK(world_->Synchronize(absl::Seconds(10)));
  const absl::Status report = world_->communicator(0).Health();
  EXPECT_EQ(report.code(), absl::StatusCode::kOutOfRange) << report;
  EXPECT_NE(report.message().find("rank 2: expanded index 5000 of token 2"), std::string::npos)
      << report;
  ASSERT_EQ(cudaMemcpy(indices + 17, &good, 4, cudaMemcpyHostToDevice), cudaSuccess);
  ResetAndExpectRight(100);
}

TEST_F(Faults, ClosingStopsALaunchWhosePeerNeverComesAndThenNothingTouchesTheGroup) {
  Create(absl::Seconds(60));
  STOKER_ASSERT_OK(Launch(0, FaultOptions().shape));
  const absl::Time start = absl::Now();
  STOKER_ASSERT_OK(world_->OnAllRanks([](comm::CudaCommunicator& c, comm::RankExchange& exchange) {
    return c.Close(exchange, absl::Seconds(1));
  }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  ExpectNan(0);
  for (const absl::Status& refused :
       {world_->communicator(0).Abort(), world_->communicator(0).SetTimeout(absl::Seconds(1)),
        Launch(0, FaultOptions().shape)}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  }
}

TEST_F(Faults, StoppingAFailedGroupDoesNotHideWhyItFailed) {
  Create(absl::Milliseconds(200));
  for (int rank : {1, 2, 3}) STOKER_ASSERT_OK(Launch(rank, FaultOptions().shape));
  STOKER_ASSERT_OK(world_->Synchronize(absl::Seconds(10)));
  STOKER_ASSERT_OK(world_->communicator(0).Abort());
  const absl::Status report = world_->communicator(0).Health();
  EXPECT_NE(report.message().find("for rank 0"), std::string::npos) << report;
  ResetAndExpectRight(10);
}

TEST_F(Faults, TwoGraphsReplayedAtOnceAreAnOverlap) {
  Create(absl::Milliseconds(500));
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(world_->stream(0), cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  STOKER_ASSERT_OK(Launch(0, FaultOptions().shape));
  ASSERT_EQ(cudaStreamEndCapture(world_->stream(0), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  // The host API is not asked; the first waits for its peers while the second starts.
  STOKER_ASSERT_OK(Launch(0, FaultOptions().shape));
  ASSERT_EQ(cudaGraphLaunch(executable, other), cudaSuccess);
  STOKER_ASSERT_OK(world_->Synchronize(absl::Seconds(10)));
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  const absl::Status report = world_->communicator(0).Health();
  EXPECT_NE(report.message().find("second launch"), std::string::npos) << report;
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(other);
  ResetAndExpectRight(100);
}

TEST_F(Faults, AReportAfterAResetHasTheFullLaunchAsWell) {
  Create(absl::Milliseconds(100));
  for (int round = 0; round < 3; ++round) {
    // Many launches are queued behind the one that fails; they must not push it out of the log.
    for (int i = 0; i < 50; ++i) {
      for (int rank : {0, 2, 3}) STOKER_ASSERT_OK(Launch(rank, FaultOptions().shape));
    }
    STOKER_ASSERT_OK(world_->Synchronize(absl::Seconds(10)));
    const absl::Status report = world_->communicator(2).Health();
    EXPECT_NE(report.message().find("launched finalize of 6 tokens (hidden 2880"),
              std::string::npos)
        << "round " << round << ": " << report;
    ResetAndExpectRight(3);
  }
}

TEST_F(Faults, ALaunchAfterItsStreamWasDestroyedIsFine) {
  Create(absl::Seconds(5));
  for (int round = 0; round < 5; ++round) {
    std::vector<cudaStream_t> streams(kWorld);
    for (int rank = 0; rank < kWorld; ++rank) {
      ASSERT_EQ(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking), cudaSuccess);
      STOKER_ASSERT_OK(moe::MoeFinalizeAllReduceRmsNorm(
          world_->communicator(rank), FaultOptions().shape, data_.device[rank].finalize(),
          data_.device[rank].norm(), {}, streams[rank]));
    }
    for (cudaStream_t stream : streams) {
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
  }
  ExpectRight(1);
}

TEST_F(Faults, ADeadlineChangedLaterReachesACapturedGraph) {
  Create(absl::Seconds(60));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(world_->stream(0), cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  STOKER_ASSERT_OK(Launch(0, FaultOptions().shape));
  ASSERT_EQ(cudaStreamEndCapture(world_->stream(0), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  STOKER_ASSERT_OK(world_->communicator(0).SetTimeout(absl::Milliseconds(100)));
  const absl::Time start = absl::Now();
  ASSERT_EQ(cudaGraphLaunch(executable, world_->stream(0)), cudaSuccess);  // without peers
  STOKER_ASSERT_OK(world_->Synchronize(absl::Seconds(10)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  EXPECT_FALSE(world_->communicator(0).Health().ok());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace stoker::testing
