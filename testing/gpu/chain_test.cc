// A hundred thousand times producer → fused launch → consumer, programmatic launch on every edge
// and random delays in all three: the producer writes one of three sets of rows, the consumer
// compares every output with what that set must give.
#include "testing/gpu/chain.h"

#include <memory>
#include <vector>

#include "testing/gpu/gpu_fixture.h"
#include "testing/gpu/variants.h"

namespace stoker::testing {
namespace {

constexpr int kWorld = 4;
constexpr int kSets = 3;
constexpr int kIterationsPerGraph = 30;
constexpr int kReplays = 100'000 / kIterationsPerGraph + 1;
constexpr int kReplaysInFlight = 50;

InputOptions ChainOptions(uint64_t seed) {
  InputOptions options;
  options.shape = {4, 2048, comm::WireType::kBf16};
  options.seed = seed;
  return options;
}

struct DeviceDeleter {
  void operator()(void* p) const { cudaFree(p); }
};
using DeviceBuffer = std::unique_ptr<void, DeviceDeleter>;

DeviceBuffer ToDevice(const void* data, int64_t bytes) {
  void* buffer = nullptr;
  if (cudaMalloc(&buffer, bytes) != cudaSuccess) return nullptr;
  cudaMemcpy(buffer, data, bytes, cudaMemcpyHostToDevice);
  return DeviceBuffer(buffer);
}

struct ChainCase {
  const char* name;
  Variant variant;
  bool early_trigger;
};

class Chain : public GpuTest, public ::testing::WithParamInterface<ChainCase> {};

TEST_P(Chain, AHundredThousandTimes) {
  const moe::Shape shape = ChainOptions(1).shape;
  auto world = StreamWorld::Create(kWorld, GpuGroup(8, 2048, absl::Seconds(5)));
  ASSERT_TRUE(world.ok()) << world.status();
  auto live = UploadAll(ChainOptions(1), kWorld);
  ASSERT_TRUE(live.ok()) << live.status();
  const int64_t output_bytes = int64_t{2} * shape.tokens * shape.hidden;
  std::vector<RankData> sets;
  std::vector<DeviceBuffer> residual, norm;
  for (int set = 0; set < kSets; ++set) {
    auto data = UploadAll(ChainOptions(1), kWorld);
    ASSERT_TRUE(data.ok()) << data.status();
    // Only the rows differ between the sets: they are what the producer writes.
    auto other = UploadAll(ChainOptions(set + 2), kWorld);
    ASSERT_TRUE(other.ok()) << other.status();
    for (int rank = 0; rank < kWorld; ++rank) {
      data->host[rank].rows = other->host[rank].rows;
      data->host[rank].finalize.rows = data->host[rank].rows.data();
    }
    const moe::NormResult expected = Expected(shape, data->host);
    residual.push_back(ToDevice(expected.residual_out.data(), output_bytes));
    norm.push_back(ToDevice(expected.norm_out.data(), output_bytes));
    ASSERT_TRUE(residual.back() != nullptr && norm.back() != nullptr);
    sets.push_back(std::move(*other));
  }
  const unsigned long long zero = 0;
  const DeviceBuffer wrong = ToDevice(&zero, sizeof(zero));
  ASSERT_NE(wrong, nullptr);
  auto* count = static_cast<unsigned long long*>(wrong.get());

  moe::LaunchOptions launch{.programmatic_launch = true,
                            .early_trigger = GetParam().early_trigger,
                            .protocol = GetParam().variant == Variant::kDelayedTwoShot
                                            ? comm::Protocol::kTwoShot
                                            : comm::Protocol::kOneShot};
  launch.kernel = VariantKernel(GetParam().variant,
                                moe::ShapeOf((*world)->communicator(0), shape, launch).vectors);
  std::vector<cudaGraphExec_t> graphs(kWorld);
  for (int rank = 0; rank < kWorld; ++rank) {
    cudaStream_t stream = (*world)->stream(rank);
    const moe::FinalizeArguments& finalize = live->device[rank].finalize();
    const moe::NormArguments& out = live->device[rank].norm();
    const int64_t row_bytes = finalize.row_count * shape.hidden * 2;
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < kIterationsPerGraph; ++i) {
      const int set = i % kSets;
      ASSERT_EQ(LaunchProducer(sets[set].device[rank].finalize().rows,
                               const_cast<void*>(finalize.rows), row_bytes, stream),
                cudaSuccess);
      STOKER_ASSERT_OK(moe::MoeFinalizeAllReduceRmsNorm((*world)->communicator(rank), shape,
                                                        finalize, out, launch, stream));
      ASSERT_EQ(LaunchConsumer(out.residual_out, residual[set].get(), output_bytes, count, stream),
                cudaSuccess);
      ASSERT_EQ(LaunchConsumer(out.norm_out, norm[set].get(), output_bytes, count, stream),
                cudaSuccess);
    }
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graphs[rank], graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
  }
  for (int replay = 0; replay < kReplays; ++replay) {
    for (int rank = 0; rank < kWorld; ++rank) {
      ASSERT_EQ(cudaGraphLaunch(graphs[rank], (*world)->stream(rank)), cudaSuccess);
    }
    if (replay % kReplaysInFlight == 0 || replay == kReplays - 1) {
      STOKER_ASSERT_OK((*world)->Synchronize(absl::Seconds(20)));
    }
  }
  STOKER_ASSERT_OK((*world)->communicator(0).Health());
  unsigned long long found = 0;
  ASSERT_EQ(cudaMemcpy(&found, count, sizeof(found), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(found, 0u) << "16-byte pieces of outputs differ";
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

INSTANTIATE_TEST_SUITE_P(
    Exchanges, Chain,
    ::testing::Values(ChainCase{"OneShot", Variant::kDelayed, false},
                      ChainCase{"OneShotEarlyTrigger", Variant::kDelayed, true},
                      ChainCase{"TwoShot", Variant::kDelayedTwoShot, false},
                      ChainCase{"TwoShotEarlyTrigger", Variant::kDelayedTwoShot, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stoker::testing
