// The plain all-reduce on a GPU: both exchanges, shapes with partial warps and several vectors a
// thread, and every bit pattern. Graphs: python/tests/test_gpu.py.
#include <optional>

#include "testing/gpu/gpu_fixture.h"

namespace stoker::testing {
namespace {

moe::Rows Partial(const moe::Shape& shape, const Inputs& inputs) {
  return moe::Rows(inputs.rows.begin(), inputs.rows.begin() + int64_t{shape.tokens} * shape.hidden);
}

// The sum is what a tail without residual gives as residual_out.
moe::Rows ExpectedSum(const moe::Shape& shape, const std::vector<moe::Rows>& partials) {
  const std::vector<uint16_t> gamma(shape.hidden, 0x3C00);
  moe::NormArguments norm;
  norm.gamma = gamma.data();
  return moe::ReferenceSumAndNorm(shape, partials, norm).residual_out;
}

moe::Rows ExpectedSum(const moe::Shape& shape, const std::vector<Inputs>& ranks) {
  std::vector<moe::Rows> partials;
  for (const Inputs& rank : ranks) partials.push_back(Partial(shape, rank));
  return ExpectedSum(shape, partials);
}

// Each rank's first rows, summed into its norm_out.
absl::Status LaunchSums(StreamWorld& world, const moe::Shape& shape, const RankData& data,
                        const moe::LaunchOptions& options) {
  for (int rank = 0; rank < world.world(); ++rank) {
    STOKER_RETURN_IF_ERROR(
        moe::AllReduce(world.communicator(rank), shape, data.device[rank].finalize().rows,
                       data.device[rank].norm().norm_out, options, world.stream(rank)));
  }
  return absl::OkStatus();
}

std::string Differences(const moe::Shape& shape, const moe::Rows& expected, const RankData& data) {
  for (size_t rank = 0; rank < data.device.size(); ++rank) {
    const auto actual = data.device[rank].Download();
    if (!actual.ok()) return actual.status().ToString();
    const std::string difference = DifferenceInBits(shape, expected, actual->norm_out);
    if (!difference.empty()) return absl::StrCat("rank ", rank, ": ", difference);
  }
  return "";
}

struct SumCase {
  int world;
  int tokens;
  int hidden;
  comm::WireType type;
  std::optional<comm::Protocol> protocol;
};

class AllReduce : public GpuTest, public ::testing::WithParamInterface<SumCase> {};

TEST_P(AllReduce, HasTheReferencesBits) {
  const SumCase& c = GetParam();
  InputOptions options;
  options.shape = {c.tokens, c.hidden, c.type};
  options.special_values = true;
  auto world = StreamWorld::Create(c.world, GpuGroup(c.tokens, c.hidden, absl::Seconds(10)));
  ASSERT_TRUE(world.ok()) << world.status();
  auto data = UploadAll(options, c.world);
  ASSERT_TRUE(data.ok()) << data.status();
  for (int launch = 0; launch < 3; ++launch) {
    for (int rank = 0; rank < c.world; ++rank) {
      STOKER_ASSERT_OK(data->device[rank].Poison((*world)->stream(rank)));
    }
    STOKER_ASSERT_OK(LaunchSums(**world, options.shape, *data,
                                {.programmatic_launch = launch == 1, .protocol = c.protocol}));
    STOKER_ASSERT_OK((*world)->Synchronize(absl::Seconds(20)));
    STOKER_ASSERT_OK((*world)->communicator(0).Health());
    EXPECT_EQ(Differences(options.shape, ExpectedSum(options.shape, data->host), *data), "");
  }
}

constexpr comm::WireType kBf16 = comm::WireType::kBf16;
constexpr comm::WireType kFp16 = comm::WireType::kFp16;
constexpr comm::Protocol kOneShot = comm::Protocol::kOneShot;
constexpr comm::Protocol kTwoShot = comm::Protocol::kTwoShot;

INSTANTIATE_TEST_SUITE_P(
    Shapes, AllReduce,
    ::testing::Values(SumCase{1, 5, 2880, kBf16, {}}, SumCase{2, 1, 7168, kBf16, {}},
                      SumCase{2, 33, 1344, kFp16, {}}, SumCase{3, 7, 8, kBf16, kOneShot},
                      SumCase{3, 7, 2880, kFp16, kTwoShot}, SumCase{4, 64, 7168, kBf16, kTwoShot},
                      SumCase{4, 16, 16384, kBf16, kOneShot}, SumCase{4, 3, 16384, kFp16, kTwoShot},
                      SumCase{8, 20, 4096, kBf16, {}}, SumCase{8, 9, 2688, kFp16, kTwoShot},
                      SumCase{2, 0, 64, kBf16, {}}),
    [](const auto& info) {
      const SumCase& c = info.param;
      return absl::StrCat("world", c.world, "_", c.tokens, "x", c.hidden,
                          c.type == kBf16 ? "_bf16" : "_fp16",
                          c.protocol == kTwoShot ? "_two_shot" : "");
    });

using AllReducePatterns = GpuTest;

TEST_F(AllReducePatterns, EveryPatternArrivesAsItIsAndNanAsNan) {
  for (const comm::WireType type : {kBf16, kFp16}) {
    const moe::Shape shape{8, 16384, type};
    auto world = StreamWorld::Create(2, GpuGroup(8, 16384, absl::Seconds(10)));
    ASSERT_TRUE(world.ok()) << world.status();
    std::vector<moe::Rows> partials(2, moe::Rows(int64_t{shape.tokens} * shape.hidden, 0x8000));
    for (size_t i = 0; i < partials[0].size(); ++i) {
      partials[0][i] = static_cast<uint16_t>(i < 65536 ? i : i * 40503u + (i >> 16));
    }
    // Whole words that say "not arrived" to a peer, sent by the rank whose row comes second too.
    for (size_t i = 0; i < 64; ++i) partials[1][i] = 0xFFFF;
    RankData data;
    for (int rank = 0; rank < 2; ++rank) {
      Inputs in;
      in.rows = partials[rank];
      in.gamma.resize(shape.hidden * 2);
      in.norm.gamma = in.gamma.data();
      in.finalize.rows = in.rows.data();
      auto uploaded = DeviceInputs::Upload(in, shape);
      ASSERT_TRUE(uploaded.ok()) << uploaded.status();
      data.device.push_back(std::move(*uploaded));
    }
    STOKER_ASSERT_OK(LaunchSums(**world, shape, data, {}));
    STOKER_ASSERT_OK((*world)->Synchronize(absl::Seconds(20)));
    EXPECT_EQ(Differences(shape, ExpectedSum(shape, partials), data), "");
  }
}

}  // namespace
}  // namespace stoker::testing
