// Two ranks in one grid, for compute-sanitizer: world 2, 33 tokens, hidden 2880, three launches.
#include "testing/gpu/one_grid.h"

#include "moe/make_params.h"
#include "testing/gpu/gpu_fixture.h"

namespace stoker::testing {
namespace {

class OneGrid : public GpuTest, public ::testing::WithParamInterface<comm::Protocol> {};

TEST_P(OneGrid, ThreeLaunchesHaveTheReferencesBits) {
  InputOptions options;
  options.shape = {33, 2880, comm::WireType::kBf16};
  options.dropped_routes = true;
  auto world = StreamWorld::Create(kOneGridWorld, GpuGroup(33, 2880, absl::Seconds(120)));
  ASSERT_TRUE(world.ok()) << world.status();
  auto data = UploadAll(options, kOneGridWorld);
  ASSERT_TRUE(data.ok()) << data.status();
  OneGridParams params{};
  for (int rank = 0; rank < kOneGridWorld; ++rank) {
    const moe::FinalizeArguments& finalize = data->device[rank].finalize();
    const moe::NormArguments& norm = data->device[rank].norm();
    params.exchange[rank] = moe::MakeExchangeParams(
        (*world)->communicator(rank).Params(), options.shape,
        moe::DescribeFinalize(options.shape, finalize, norm, {}, comm::Generation(0)), {});
    params.finalize[rank] = moe::MakeFinalizeParams(options.shape, finalize);
    params.norm[rank] = moe::MakeNormParams(options.shape, norm);
  }
  for (int launch = 0; launch < 3; ++launch) {
    ASSERT_EQ(LaunchOneGrid(GetParam(), params, 384, 11, (*world)->stream(0)), cudaSuccess);
  }
  STOKER_ASSERT_OK((*world)->Synchronize(absl::Seconds(300)));
  STOKER_ASSERT_OK((*world)->communicator(0).Health());
  EXPECT_EQ(Differences(options.shape, Expected(options.shape, data->host), data->device), "");
}

INSTANTIATE_TEST_SUITE_P(Exchanges, OneGrid,
                         ::testing::Values(comm::Protocol::kOneShot, comm::Protocol::kTwoShot),
                         [](const auto& info) {
                           return info.param == comm::Protocol::kOneShot ? "OneShot" : "TwoShot";
                         });

}  // namespace
}  // namespace stoker::testing
