// An all-pairs cover of everything a launch can have, on one GPU with ranks as streams: every
// output of every rank has the bits of the plain-loop reference, NaN and infinities included.
#include <cstdio>
#include <map>

#include "testing/all_pairs.h"
#include "testing/gpu/gpu_fixture.h"

namespace stoker::testing {
namespace {

constexpr uint64_t kSeed = 20261201;
constexpr int kWorlds[] = {2, 4, 8};
constexpr int kTokens[] = {0, 1, 2, 7, 12, 16, 18, 28, 33, 37, 64, 128};
constexpr int kHidden[] = {2048, 2880, 4096, 6144, 7168};
constexpr int kTopK[] = {1, 6, 8, 10};

enum Factor {
  kType,
  kWeights,
  kHiddenSize,
  kTokenCount,
  kWorld,
  kRoutes,
  kAddends,
  kResidual,
  kBias,
  kProgrammatic,
  kGraph,
  kGammaType,
  kMode
};
const std::vector<int> kLevels = {2, 3, 5, 12, 3, 4, 4, 2, 2, 2, 2, 2, 2};

InputOptions Options(const std::vector<int>& c, uint64_t seed) {
  InputOptions options;
  options.shape = {kTokens[c[kTokenCount]], kHidden[c[kHiddenSize]],
                   c[kType] == 0 ? comm::WireType::kBf16 : comm::WireType::kFp16};
  options.weights = c[kWeights] != 2;
  options.weight_type = c[kWeights] == 1 ? moe::ScalarType::kFp32 : moe::ScalarType::kWire;
  options.top_k = kTopK[c[kRoutes]];
  options.shared = c[kAddends] % 2 == 0;
  options.cold = c[kAddends] >= 2;
  options.cold_type = c[kGammaType] == 0 ? moe::ScalarType::kWire : moe::ScalarType::kFp32;
  options.residual = c[kResidual] == 0;
  options.weight_bias = c[kBias] == 0 ? 0.0f : 1.0f;
  options.gamma_type = c[kGammaType] == 0 ? moe::ScalarType::kWire : moe::ScalarType::kFp32;
  options.mode = c[kMode] == 0 ? comm::Mode::kRounded : comm::Mode::kFp32Residual;
  options.dropped_routes = true;
  options.special_values = c[kBias] == 1;
  options.seed = seed;
  return options;
}

std::string Name(const InputOptions& o, int world, const std::vector<int>& c) {
  return absl::StrCat(
      "world ", world, ", tokens ", o.shape.tokens, ", hidden ", o.shape.hidden, ", top-k ",
      o.top_k, c[kType] == 0 ? ", bf16" : ", fp16", ", weights ", c[kWeights], ", addends ",
      c[kAddends], ", residual ", c[kResidual] == 0 ? "yes" : "no", ", bias ", o.weight_bias,
      c[kProgrammatic] == 1 ? ", programmatic" : "", c[kGraph] == 1 ? ", graph" : ", eager");
}

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
  const auto cases = AllPairs(kLevels, kSeed);
  std::printf("seed %llu, %zu cases\n", static_cast<unsigned long long>(kSeed), cases.size());
  std::map<int, std::unique_ptr<StreamWorld>> worlds;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<int>& c = cases[i];
    const int ranks = kWorlds[c[kWorld]];
    if (worlds[ranks] == nullptr) {
      auto world = StreamWorld::Create(ranks, GpuGroup(128, 7168, absl::Seconds(10)));
      ASSERT_TRUE(world.ok()) << world.status();
      worlds[ranks] = std::move(*world);
    }
    StreamWorld& world = *worlds[ranks];
    const InputOptions options = Options(c, 2 * i + 1);
    SCOPED_TRACE(absl::StrCat("case ", i, ": ", Name(options, ranks, c)));
    auto data = UploadAll(options, ranks);
    ASSERT_TRUE(data.ok()) << data.status();
    const moe::LaunchOptions launch{.site = static_cast<uint32_t>(i),
                                    .programmatic_launch = c[kProgrammatic] == 1};
    if (c[kGraph] == 1) {
      auto other = UploadAll(Options(c, 2 * i + 2), ranks);
      ASSERT_TRUE(other.ok()) << other.status();
      ReplayAndCompare(world, options, *data, *other, launch);
    } else {
      STOKER_ASSERT_OK(LaunchAll(world, options.shape, data->device, launch));
      STOKER_ASSERT_OK(world.Synchronize(absl::Seconds(20)));
      EXPECT_EQ(Differences(options.shape, Expected(options.shape, data->host), data->device), "");
    }
    STOKER_ASSERT_OK(world.communicator(0).Health());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace stoker::testing
