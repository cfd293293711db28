// Numbers on a GPU: the precision fixture and the builds that must fail it, and every bit pattern
// as a pushed word.
#include "testing/gpu/flush_to_zero.h"
#include "testing/gpu/gpu_fixture.h"
#include "testing/gpu/variants.h"
#include "testing/precision.h"

namespace stoker::testing {
namespace {

class Numbers : public GpuTest {
 protected:
  // residual_out of rank 0 on the precision fixture.
  absl::StatusOr<std::vector<uint16_t>> RunPrecision(const void* kernel) {
    STOKER_ASSIGN_OR_RETURN(
        auto world, StreamWorld::Create(kPrecisionWorld, GpuGroup(16, 512, absl::Seconds(5))));
    std::vector<DeviceInputs> device;
    for (int rank = 0; rank < kPrecisionWorld; ++rank) {
      STOKER_ASSIGN_OR_RETURN(DeviceInputs uploaded,
                              DeviceInputs::Upload(PrecisionInputs(rank), PrecisionShape()));
      device.push_back(std::move(uploaded));
    }
    const comm::LaunchShape shape{.cluster = 1, .threads = 32, .vectors = 1, .clusters = 3};
    STOKER_RETURN_IF_ERROR(
        LaunchAll(*world, PrecisionShape(), device, {.shape = &shape, .kernel = kernel}));
    STOKER_RETURN_IF_ERROR(world->Synchronize(absl::Seconds(10)));
    STOKER_ASSIGN_OR_RETURN(const moe::NormResult result, device[0].Download());
    return result.residual_out;
  }
};

TEST_F(Numbers, TheShippedKernelPassesThePrecisionFixture) {
  auto residual = RunPrecision(nullptr);
  ASSERT_TRUE(residual.ok()) << residual.status();
  EXPECT_EQ(WrongTokens(*residual), std::vector<int>{});
}

TEST_F(Numbers, BuildsThatRoundPerRoutePerAddOrPerRankFailIt) {
  const std::pair<Variant, int> wanted[] = {
      {Variant::kRoundRoute, 0}, {Variant::kRoundAdd, 1}, {Variant::kRoundRank, 2}};
  for (const auto& [variant, token] : wanted) {
    auto residual = RunPrecision(VariantKernel(variant, 1));
    ASSERT_TRUE(residual.ok()) << residual.status();
    EXPECT_EQ(WrongTokens(*residual), std::vector<int>{token});
  }
}

// The patterns in order, then shuffled, then a few whole sentinels.
moe::Rows Patterns(const moe::Shape& shape) {
  moe::Rows input(static_cast<size_t>(shape.tokens) * shape.hidden);
  for (size_t i = 0; i < input.size(); ++i) {
    input[i] = static_cast<uint16_t>(i < 65536 ? i : i * 40503u + (i >> 16));
  }
  for (size_t i = 65536; i < 65536 + 64; ++i) input[i] = 0xFFFF;
  return input;
}

// Runs `x + -0` over two ranks, x = Patterns, and gives each rank's outputs.
absl::StatusOr<std::vector<moe::NormResult>> PushPatterns(const moe::Shape& shape,
                                                          bool flush_to_zero) {
  STOKER_ASSIGN_OR_RETURN(auto world, StreamWorld::Create(2, GpuGroup(8, 16384, absl::Seconds(5))));
  Inputs in;
  in.rows = Patterns(shape);
  in.gamma.resize(shape.hidden * 2);
  for (size_t i = 0; i < in.gamma.size(); i += 2) in.gamma[i + 1] = 0x3C;
  in.norm.gamma = in.gamma.data();
  in.finalize.rows = in.rows.data();
  std::vector<DeviceInputs> device;
  for (int rank = 0; rank < 2; ++rank) {
    if (rank == 1) std::fill(in.rows.begin(), in.rows.end(), 0x8000);
    STOKER_ASSIGN_OR_RETURN(DeviceInputs uploaded, DeviceInputs::Upload(in, shape));
    device.push_back(std::move(uploaded));
    moe::LaunchOptions options;
    if (flush_to_zero) {
      options.kernel = FlushToZeroPlainKernel(
          shape.wire_type, moe::ShapeOf(world->communicator(rank), shape, {}).vectors);
    }
    STOKER_RETURN_IF_ERROR(moe::AllReduceRmsNorm(world->communicator(rank), shape,
                                                 device[rank].finalize().rows, device[rank].norm(),
                                                 options, world->stream(rank)));
  }
  STOKER_RETURN_IF_ERROR(world->Synchronize(absl::Seconds(10)));
  STOKER_RETURN_IF_ERROR(world->communicator(0).Health());
  std::vector<moe::NormResult> results;
  for (const DeviceInputs& rank : device) {
    STOKER_ASSIGN_OR_RETURN(moe::NormResult result, rank.Download());
    results.push_back(std::move(result));
  }
  return results;
}

class BitPatterns : public GpuTest, public ::testing::WithParamInterface<comm::WireType> {
 protected:
  moe::Shape shape() const { return {8, 16384, GetParam()}; }
};

TEST_P(BitPatterns, PassAsPushedWordsInBothHalves) {
  auto results = PushPatterns(shape(), false);
  ASSERT_TRUE(results.ok()) << results.status();
  const std::vector<uint16_t> gamma(16384, 0x3C00);
  moe::NormArguments norm;
  norm.gamma = gamma.data();
  const moe::Rows minus_zero(8 * 16384, 0x8000);
  const moe::NormResult wanted =
      moe::ReferenceSumAndNorm(shape(), {Patterns(shape()), minus_zero}, norm);
  for (const moe::NormResult& actual : *results) {
    EXPECT_EQ(DifferenceInBits(shape(), wanted.residual_out, actual.residual_out), "");
    EXPECT_EQ(DifferenceInBits(shape(), wanted.norm_out, actual.norm_out), "");
  }
}

TEST_P(BitPatterns, ArriveAlsoWhereTheArithmeticFlushesToZero) {
  auto results = PushPatterns(shape(), true);
  ASSERT_TRUE(results.ok()) << results.status();
  const moe::Rows input = Patterns(shape());
  const uint16_t exponent = GetParam() == comm::WireType::kBf16 ? 0x7F80 : 0x7C00;
  for (const moe::NormResult& actual : *results) {
    for (size_t i = 0; i < input.size(); ++i) {
      const bool nan = (input[i] & 0x7FFF) > exponent;
      // Arithmetic may flush what is subnormal in FP32, which of the two types only bf16 has.
      const bool flushed = GetParam() == comm::WireType::kBf16 && (input[i] & exponent) == 0;
      const uint16_t wanted = nan ? comm::kStoredNan : input[i];
      const uint16_t zero = input[i] & 0x8000;
      ASSERT_TRUE(actual.residual_out[i] == wanted || (flushed && actual.residual_out[i] == zero))
          << "pattern " << std::hex << input[i] << " gave " << actual.residual_out[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BitPatterns,
                         ::testing::Values(comm::WireType::kBf16, comm::WireType::kFp16),
                         [](const auto& info) {
                           return std::string(info.param == comm::WireType::kBf16 ? "bf16"
                                                                                  : "fp16");
                         });

}  // namespace
}  // namespace stoker::testing
