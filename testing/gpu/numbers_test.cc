// Numbers on a GPU: the precision fixture and the builds that must fail it, and every bit pattern
// as a pushed word.
#include "base/cuda_status.h"
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

TEST_F(Numbers, EveryBitPatternPassesAsAPushedWordInBothHalves) {
  auto world = StreamWorld::Create(2, GpuGroup(8, 16384, absl::Seconds(5)));
  ASSERT_TRUE(world.ok()) << world.status();
  for (comm::WireType type : {comm::WireType::kBf16, comm::WireType::kFp16}) {
    const moe::Shape shape{8, 16384, type};
    // The patterns in order, then shuffled; the other rank sends -0: x + -0 = x.
    moe::Rows input(8 * 16384);
    for (size_t i = 0; i < input.size(); ++i) {
      input[i] = static_cast<uint16_t>(i < 65536 ? i : i * 40503u + (i >> 16));
    }
    for (size_t i = 65536; i < 65536 + 64; ++i) input[i] = 0xFFFF;  // whole sentinels
    const moe::Rows minus_zero(input.size(), 0x8000);
    const std::vector<uint16_t> gamma(16384, 0x3C00);
    const int64_t bytes = static_cast<int64_t>(input.size()) * 2;
    std::vector<void*> in(2), residual(2), norm(2);
    void* device_gamma = nullptr;
    ASSERT_EQ(cudaMalloc(&device_gamma, 32768), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(device_gamma, gamma.data(), 32768, cudaMemcpyHostToDevice), cudaSuccess);
    moe::NormArguments arguments;
    arguments.gamma = device_gamma;
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(cudaMalloc(&in[rank], bytes), cudaSuccess);
      ASSERT_EQ(cudaMalloc(&residual[rank], bytes), cudaSuccess);
      ASSERT_EQ(cudaMalloc(&norm[rank], bytes), cudaSuccess);
      const moe::Rows& mine = rank == 0 ? input : minus_zero;
      ASSERT_EQ(cudaMemcpy(in[rank], mine.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
      arguments.residual_out = residual[rank];
      arguments.norm_out = norm[rank];
      STOKER_ASSERT_OK(moe::AllReduceRmsNorm((*world)->communicator(rank), shape, in[rank],
                                             arguments, {}, (*world)->stream(rank)));
    }
    STOKER_ASSERT_OK((*world)->Synchronize(absl::Seconds(10)));
    moe::NormArguments host = arguments;
    host.gamma = gamma.data();
    const moe::NormResult wanted = moe::ReferenceSumAndNorm(shape, {input, minus_zero}, host);
    for (int rank = 0; rank < 2; ++rank) {
      moe::Rows actual(input.size());
      ASSERT_EQ(cudaMemcpy(actual.data(), residual[rank], bytes, cudaMemcpyDeviceToHost),
                cudaSuccess);
      EXPECT_EQ(DifferenceInBits(shape, wanted.residual_out, actual), "");
      ASSERT_EQ(cudaMemcpy(actual.data(), norm[rank], bytes, cudaMemcpyDeviceToHost), cudaSuccess);
      EXPECT_EQ(DifferenceInBits(shape, wanted.norm_out, actual), "");
      cudaFree(in[rank]);
      cudaFree(residual[rank]);
      cudaFree(norm[rank]);
    }
    cudaFree(device_gamma);
  }
}

}  // namespace
}  // namespace stoker::testing
