// The published hang of a fused finalize kernel (back-to-back launches of 128 tokens on four ranks
// that poll their peers' memory): the shipped body passes it with random delays inside the kernel,
// and a build that polls the peers fails it, with a report.
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "testing/gpu/gpu_fixture.h"
#include "testing/gpu/variants.h"
#include "testing/gpu/weakened.h"

namespace stoker::testing {
namespace {

constexpr int kWorld = 4;
constexpr int kLaunches = 20;
constexpr int kReplays = 50;
constexpr int kInputSets = 3;

InputOptions HangOptions(uint64_t seed) {
  InputOptions options;
  options.shape = {128, 7168, comm::WireType::kBf16};
  options.dropped_routes = true;
  options.seed = seed;
  return options;
}

// The outputs of one launch of one rank.
struct Outputs {
  void* residual = nullptr;
  void* norm = nullptr;
};

class PublishedHang : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto world = StreamWorld::Create(kWorld, GpuGroup(128, 7168, absl::Seconds(3)));
    ASSERT_TRUE(world.ok()) << world.status();
    world_ = std::move(*world);
    for (int set = 0; set < kInputSets; ++set) {
      auto data = UploadAll(HangOptions(set + 1), kWorld);
      ASSERT_TRUE(data.ok()) << data.status();
      expected_.push_back(Expected(HangOptions(1).shape, data->host));
      sets_.push_back(std::move(*data));
    }
    auto captured = UploadAll(HangOptions(1), kWorld);
    ASSERT_TRUE(captured.ok()) << captured.status();
    captured_ = std::move(*captured);
    bytes_ = static_cast<int64_t>(128) * 7168 * 2;
    for (int i = 0; i < kWorld * kLaunches; ++i) {
      Outputs outputs;
      ASSERT_EQ(cudaMalloc(&outputs.residual, bytes_), cudaSuccess);
      ASSERT_EQ(cudaMalloc(&outputs.norm, bytes_), cudaSuccess);
      outputs_.push_back(outputs);
    }
  }
  void TearDown() override {
    for (const Outputs& outputs : outputs_) {
      cudaFree(outputs.residual);
      cudaFree(outputs.norm);
    }
  }

  // Instead of the table's kernel, and the exchange that it is made of.
  struct Build {
    const void* kernel;
    comm::Protocol protocol = comm::Protocol::kOneShot;
  };
  Build BuildOf(Variant variant) {
    const comm::Protocol protocol =
        variant == Variant::kDelayedTwoShot ? comm::Protocol::kTwoShot : comm::Protocol::kOneShot;
    return {VariantKernel(variant, VectorsOf(protocol)), protocol};
  }
  int VectorsOf(comm::Protocol protocol) {
    const moe::LaunchOptions options{.protocol = protocol};
    return moe::ShapeOf(world_->communicator(0), HangOptions(1).shape, options).vectors;
  }

  absl::Status Launch(int rank, int launch, const Build& build) {
    moe::LaunchOptions options{.programmatic_launch = true, .protocol = build.protocol};
    options.kernel = build.kernel;
    moe::NormArguments norm = captured_.device[rank].norm();
    norm.residual_out = outputs_[rank * kLaunches + launch].residual;
    norm.norm_out = outputs_[rank * kLaunches + launch].norm;
    return moe::MoeFinalizeAllReduceRmsNorm(world_->communicator(rank), HangOptions(1).shape,
                                            captured_.device[rank].finalize(), norm, options,
                                            world_->stream(rank));
  }

  absl::StatusOr<std::vector<cudaGraphExec_t>> Capture(Variant variant) {
    return Capture(BuildOf(variant));
  }
  absl::StatusOr<std::vector<cudaGraphExec_t>> Capture(const Build& build) {
    std::vector<cudaGraphExec_t> graphs(kWorld);
    for (int rank = 0; rank < kWorld; ++rank) {
      cudaGraph_t graph = nullptr;
      STOKER_CUDA(cudaStreamBeginCapture(world_->stream(rank), cudaStreamCaptureModeThreadLocal));
      for (int launch = 0; launch < kLaunches; ++launch) {
        STOKER_RETURN_IF_ERROR(Launch(rank, launch, build));
      }
      STOKER_CUDA(cudaStreamEndCapture(world_->stream(rank), &graph));
      STOKER_CUDA(cudaGraphInstantiate(&graphs[rank], graph, 0));
      STOKER_CUDA(cudaGraphDestroy(graph));
    }
    return graphs;
  }

  absl::Status Replay(const std::vector<cudaGraphExec_t>& graphs, int set) {
    for (int rank = 0; rank < kWorld; ++rank) {
      STOKER_RETURN_IF_ERROR(
          captured_.device[rank].CopyInputs(sets_[set].device[rank], world_->stream(rank)));
      STOKER_CUDA(cudaGraphLaunch(graphs[rank], world_->stream(rank)));
    }
    return world_->Synchronize(absl::Seconds(20));
  }

  // How many of the outputs of a replay differ from what `set` must give.
  int CountWrong(int set) {
    std::vector<uint16_t> actual(bytes_ / 2);
    int wrong = 0;
    for (const Outputs& outputs : outputs_) {
      cudaMemcpy(actual.data(), outputs.residual, bytes_, cudaMemcpyDeviceToHost);
      wrong += actual != expected_[set].residual_out;
      cudaMemcpy(actual.data(), outputs.norm, bytes_, cudaMemcpyDeviceToHost);
      wrong += actual != expected_[set].norm_out;
    }
    return wrong;
  }

  std::unique_ptr<StreamWorld> world_;
  std::vector<RankData> sets_;
  std::vector<moe::NormResult> expected_;
  RankData captured_;
  std::vector<Outputs> outputs_;
  int64_t bytes_ = 0;
};

class PublishedHangWithDelays : public PublishedHang,
                                public ::testing::WithParamInterface<Variant> {};

TEST_P(PublishedHangWithDelays, TwentyLaunchesFiftyReplaysAreRightWithinAMinute) {
  auto graphs = Capture(GetParam());
  ASSERT_TRUE(graphs.ok()) << graphs.status();
  const absl::Time start = absl::Now();
  for (int replay = 0; replay < kReplays; ++replay) {
    STOKER_ASSERT_OK(Replay(*graphs, replay % kInputSets));
    ASSERT_EQ(CountWrong(replay % kInputSets), 0)
        << "of " << 2 * outputs_.size() << ", replay " << replay;
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
  STOKER_ASSERT_OK(world_->communicator(0).Health());
  for (cudaGraphExec_t graph : *graphs) cudaGraphExecDestroy(graph);
}

INSTANTIATE_TEST_SUITE_P(Exchanges, PublishedHangWithDelays,
                         ::testing::Values(Variant::kDelayed, Variant::kDelayedTwoShot),
                         [](const auto& info) {
                           return info.param == Variant::kDelayed ? "OneShot" : "TwoShot";
                         });

TEST_F(PublishedHang, ABuildThatPollsItsPeersFailsWithAReportAndTheGroupComesBack) {
  auto graphs = Capture(Variant::kPeerPoll);
  ASSERT_TRUE(graphs.ok()) << graphs.status();
  bool failed = false;
  for (int replay = 0; replay < kReplays && !failed; ++replay) {
    STOKER_ASSERT_OK(Replay(*graphs, 0));
    failed = !world_->communicator(0).Health().ok() || CountWrong(0) != 0;
  }
  const absl::Status report = world_->communicator(0).Health();
  EXPECT_EQ(report.code(), absl::StatusCode::kDeadlineExceeded) << report;
  EXPECT_NE(report.message().find("waited"), std::string::npos) << report;
  std::printf("the peer-polling build: %s\n", report.ToString().c_str());
  for (cudaGraphExec_t graph : *graphs) cudaGraphExecDestroy(graph);
  // The GPU, the process and the group live on.
  STOKER_ASSERT_OK(world_->OnAllRanks([](comm::CudaCommunicator& c, comm::RankExchange& exchange) {
    return c.Reset(exchange, absl::Seconds(10));
  }));
  auto again = Capture(Variant::kDelayed);
  ASSERT_TRUE(again.ok()) << again.status();
  STOKER_ASSERT_OK(Replay(*again, 1));
  EXPECT_EQ(CountWrong(1), 0);
  for (cudaGraphExec_t graph : *again) cudaGraphExecDestroy(graph);
}

// What a qualifier buys can be seen only where the hardware makes use of its absence, so a build
// that passes proves nothing: it is reported, and the simulator has to kill it.
TEST_F(PublishedHang, BuildsWithOneQualifierWeakenedAreReported) {
  int count = 0;
  const WeakenedKernel* builds = WeakenedKernels(&count);
  ASSERT_EQ(VectorsOf(comm::Protocol::kOneShot), 2);
  for (int i = 0; i < count; ++i) {
    auto graphs = Capture(Build{builds[i].kernel});
    ASSERT_TRUE(graphs.ok()) << graphs.status();
    int wrong = 0;
    for (int replay = 0; replay < kReplays / 2 && wrong == 0; ++replay) {
      STOKER_ASSERT_OK(Replay(*graphs, replay % kInputSets));
      wrong = CountWrong(replay % kInputSets);
    }
    const absl::Status report = world_->communicator(0).Health();
    std::printf("%s: %s\n", builds[i].what,
                !report.ok() ? absl::StrCat("killed, ", report.message()).c_str()
                : wrong != 0 ? "killed, wrong outputs without a report"
                             : "not observable here");
    for (cudaGraphExec_t graph : *graphs) cudaGraphExecDestroy(graph);
    STOKER_ASSERT_OK(
        world_->OnAllRanks([](comm::CudaCommunicator& c, comm::RankExchange& exchange) {
          return c.Reset(exchange, absl::Seconds(10));
        }));
    auto shipped = Capture(Build{nullptr});
    ASSERT_TRUE(shipped.ok()) << shipped.status();
    STOKER_ASSERT_OK(Replay(*shipped, 1));
    EXPECT_EQ(CountWrong(1), 0) << "the shipped kernel after: " << builds[i].what;
    for (cudaGraphExec_t graph : *shipped) cudaGraphExecDestroy(graph);
  }
}

}  // namespace
}  // namespace stoker::testing
