// An all-pairs cover of everything a launch can have, on one GPU with ranks as streams: every
// output of every rank has the bits of the plain-loop reference, NaN and infinities included.
#include <cstdio>
#include <functional>
#include <map>

#include "testing/gpu/gpu_fixture.h"
#include "testing/gpu/launch_cases.h"

namespace stoker::testing {
namespace {

using LaunchRank = std::function<absl::Status(int rank)>;
using ExpectedOf =
    std::function<moe::NormResult(const moe::Shape& shape, const std::vector<Inputs>& ranks)>;

// One graph a rank, replayed with the inputs changed in between. Leaves `data` as it was.
void ReplayAndCompare(StreamWorld& world, const InputOptions& options, RankData& data,
                      const std::vector<DeviceInputs>& original, const RankData& other,
                      const LaunchRank& launch, const ExpectedOf& expected_of) {
  std::vector<cudaGraphExec_t> graphs(world.world());
  for (int rank = 0; rank < world.world(); ++rank) {
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(world.stream(rank), cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    for (int i = 0; i < 3; ++i) {
      STOKER_ASSERT_OK(launch(rank));
    }
    ASSERT_EQ(cudaStreamEndCapture(world.stream(rank), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graphs[rank], graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
  }
  const moe::NormResult expected[] = {expected_of(options.shape, data.host),
                                      expected_of(options.shape, other.host)};
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
  for (int rank = 0; rank < world.world(); ++rank) {
    STOKER_ASSERT_OK(data.device[rank].CopyInputs(original[rank], world.stream(rank)));
  }
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
      auto original = Upload(data->host, c.inputs.shape);
      auto other = UploadAll(c.other_inputs, c.world);
      ASSERT_TRUE(original.ok() && other.ok()) << original.status() << other.status();
      ReplayAndCompare(
          world, c.inputs, *data, *original, *other,
          [&](int rank) {
            return moe::MoeFinalizeAllReduceRmsNorm(
                world.communicator(rank), c.inputs.shape, data->device[rank].finalize(),
                data->device[rank].norm(), c.launch, world.stream(rank));
          },
          Expected);
      ReplayAndCompare(
          world, c.inputs, *data, *original, *other,
          [&](int rank) {
            return moe::MoeReduceAllReduceRmsNorm(
                world.communicator(rank), c.inputs.shape, data->device[rank].reduction(),
                data->device[rank].norm(), c.launch, world.stream(rank));
          },
          ExpectedOfReduction);
    } else {
      STOKER_ASSERT_OK(LaunchAll(world, c.inputs.shape, data->device, c.launch));
      STOKER_ASSERT_OK(world.Synchronize(absl::Seconds(20)));
      EXPECT_EQ(Differences(c.inputs.shape, Expected(c.inputs.shape, data->host), data->device),
                "");
      for (int rank = 0; rank < c.world; ++rank) {
        STOKER_ASSERT_OK(data->device[rank].Poison(world.stream(rank)));
      }
      STOKER_ASSERT_OK(LaunchReductions(world, c.inputs.shape, data->device, c.launch));
      STOKER_ASSERT_OK(world.Synchronize(absl::Seconds(20)));
      EXPECT_EQ(Differences(c.inputs.shape, ExpectedOfReduction(c.inputs.shape, data->host),
                            data->device),
                "")
          << "of the reduction";
    }
    STOKER_ASSERT_OK(world.communicator(0).Health());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace stoker::testing
