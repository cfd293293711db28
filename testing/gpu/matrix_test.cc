// An all-pairs cover of everything a launch can have, on one GPU with ranks as streams: every
// output of every rank has the bits of the plain-loop reference, NaN and infinities included.
#include <cstdio>
#include <map>

#include "testing/gpu/gpu_fixture.h"
#include "testing/gpu/launch_cases.h"

namespace stoker::testing {
namespace {

// One graph a rank, replayed with the inputs changed in between.
void ReplayAndCompare(StreamWorld& world, const InputOptions& options, RankData& data,
                      const RankData& other, const moe::LaunchOptions& launch) {
  std::vector<cudaGraphExec_t> graphs(world.world());
  for (int rank = 0; rank < world.world(); ++rank) {
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(world.stream(rank), cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    for (int i = 0; i < 3; ++i) {
      STOKER_ASSERT_OK(moe::MoeFinalizeAllReduceRmsNorm(
          world.communicator(rank), options.shape, data.device[rank].finalize(),
          data.device[rank].norm(), launch, world.stream(rank)));
    }
    ASSERT_EQ(cudaStreamEndCapture(world.stream(rank), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graphs[rank], graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
  }
  const moe::NormResult expected[] = {Expected(options.shape, data.host),
                                      Expected(options.shape, other.host)};
  for (int replay = 0; replay < 3; ++replay) {
    if (replay == 1) {
      for (int rank = 0; rank < world.world(); ++rank) {
        STOKER_ASSERT_OK(data.device[rank].CopyInputs(other.device[rank], world.stream(rank)));
      }
    }
    for (int rank = 0; rank < world.world(); ++rank) {
      STOKER_ASSERT_OK(data.device[rank].Poison(world.stream(rank)));
      ASSERT_EQ(cudaGraphLaunch(graphs[rank], world.stream(rank)), cudaSuccess);
    }
    STOKER_ASSERT_OK(world.Synchronize(absl::Seconds(20)));
    EXPECT_EQ(Differences(options.shape, expected[replay == 0 ? 0 : 1], data.device), "")
        << "replay " << replay;
  }
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

class Matrix : public GpuTest {};

TEST_F(Matrix, EveryCaseHasTheReferencesBits) {
  const std::vector<LaunchCase> cases = LaunchCases();
  std::printf("seed %llu, %zu cases\n", static_cast<unsigned long long>(kLaunchCasesSeed),
              cases.size());
  std::map<int, std::unique_ptr<StreamWorld>> worlds;
  for (const LaunchCase& c : cases) {
    if (worlds[c.world] == nullptr) {
      auto world = StreamWorld::Create(
          c.world, GpuGroup(kLaunchCasesTokensMax, kLaunchCasesHiddenMax, absl::Seconds(10)));
      ASSERT_TRUE(world.ok()) << world.status();
      worlds[c.world] = std::move(*world);
    }
    StreamWorld& world = *worlds[c.world];
    SCOPED_TRACE(c.name);
    auto data = UploadAll(c.inputs, c.world);
    ASSERT_TRUE(data.ok()) << data.status();
    if (c.graph) {
      auto other = UploadAll(c.other_inputs, c.world);
      ASSERT_TRUE(other.ok()) << other.status();
      ReplayAndCompare(world, c.inputs, *data, *other, c.launch);
    } else {
      STOKER_ASSERT_OK(LaunchAll(world, c.inputs.shape, data->device, c.launch));
      STOKER_ASSERT_OK(world.Synchronize(absl::Seconds(20)));
      EXPECT_EQ(Differences(c.inputs.shape, Expected(c.inputs.shape, data->host), data->device),
                "");
    }
    STOKER_ASSERT_OK(world.communicator(0).Health());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace stoker::testing
