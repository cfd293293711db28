// Shapes at the edges on one GPU, ranks as streams: rows that fill no whole number of warps and the
// longest, every chunk count of routes, worlds that are no power of two, thousands of tokens, and
// memory beyond what 32 bits can count. All with the reference's bits.
#include <cstring>

#include "moe/local_finalize.h"
#include "testing/gpu/gpu_fixture.h"

namespace stoker::testing {
namespace {

struct Case {
  int world;
  int tokens;
  int hidden;
  int top_k;
  int experts;
};

class Shapes : public GpuTest, public ::testing::WithParamInterface<Case> {};

// Finalize and reduction in each exchange, twice each, so that both halves of the mailbox are used.
void RunAll(StreamWorld& world, const InputOptions& options) {
  auto data = UploadAll(options, world.world());
  ASSERT_TRUE(data.ok()) << data.status();
  const moe::NormResult finalized = Expected(options.shape, data->host);
  const moe::NormResult reduced = ExpectedOfReduction(options.shape, data->host);
  for (comm::Protocol protocol : {comm::Protocol::kOneShot, comm::Protocol::kTwoShot}) {
    if (protocol == comm::Protocol::kTwoShot && world.world() <= 2) continue;
    SCOPED_TRACE(comm::ProtocolName(protocol));
    const moe::LaunchOptions launch{.programmatic_launch = true, .protocol = protocol};
    for (bool reduction : {false, true}) {
      for (int rank = 0; rank < world.world(); ++rank) {
        STOKER_ASSERT_OK(data->device[rank].Poison(world.stream(rank)));
      }
      for (int i = 0; i < 2; ++i) {
        STOKER_ASSERT_OK(reduction ? LaunchReductions(world, options.shape, data->device, launch)
                                   : LaunchAll(world, options.shape, data->device, launch));
      }
      STOKER_ASSERT_OK(world.Synchronize(absl::Seconds(20)));
      EXPECT_EQ(Differences(options.shape, reduction ? reduced : finalized, data->device), "")
          << (reduction ? "reduction" : "finalize");
    }
  }
  STOKER_ASSERT_OK(world.communicator(0).Health());
}

InputOptions OptionsOf(const Case& c) {
  InputOptions options;
  options.shape = {c.tokens, c.hidden,
                   c.top_k % 2 == 0 ? comm::WireType::kBf16 : comm::WireType::kFp16};
  options.top_k = c.top_k;
  options.experts = c.experts;
  options.weight_type = c.tokens % 2 == 0 ? moe::ScalarType::kFp32 : moe::ScalarType::kWire;
  options.dropped_routes = true;
  return options;
}

TEST_P(Shapes, HasTheReferencesBits) {
  const Case c = GetParam();
  auto world = StreamWorld::Create(c.world, GpuGroup(c.tokens, c.hidden, absl::Seconds(10)));
  ASSERT_TRUE(world.ok()) << world.status();
  RunAll(**world, OptionsOf(c));
}

INSTANTIATE_TEST_SUITE_P(Edges, Shapes,
                         ::testing::Values(Case{3, 5, 1344, 7, 3}, Case{5, 33, 2688, 1, 1},
                                           Case{6, 17, 2880, 32, 8}, Case{7, 4, 3584, 12, 33},
                                           Case{3, 64, 3584, 3, 9}, Case{5, 2, 16384, 31, 64},
                                           Case{6, 16, 16384, 5, 16}, Case{7, 128, 1344, 9, 7},
                                           Case{3, 1, 8, 2, 100}, Case{4, 512, 2880, 2, 4},
                                           Case{2, 2048, 1344, 4, 4}, Case{8, 1000, 2688, 3, 2},
                                           Case{3, 2048, 2880, 2, 1}, Case{4, 24, 16376, 24, 40}),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           const Case& c = info.param;
                           return absl::StrCat("world", c.world, "_tokens", c.tokens, "_hidden",
                                               c.hidden, "_topk", c.top_k, "_experts", c.experts);
                         });

class Large : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    if (free < (size_t{30} << 30)) GTEST_SKIP() << "less than 30 GiB of device memory is free";
  }
};

// 20,000 tokens of 32 KiB: 5.2 GB a rank, so that the last source of the second half lies beyond
// 2^32 bytes.
TEST_F(Large, AWorkspaceBeyondFourGigabytes) {
  auto world = StreamWorld::Create(4, GpuGroup(20000, 16384, absl::Seconds(10)));
  ASSERT_TRUE(world.ok()) << world.status();
  const comm::WorkspaceLayout& layout = (*world)->communicator(0).plan().layout;
  ASSERT_GT(layout.packet_index(1, 3, 0, 0) * comm::kPacketBytes, int64_t{1} << 32);
  RunAll(**world, OptionsOf({4, 100, 16384, 2, 2}));
}

struct Freed {
  void operator()(void* p) const { cudaFree(p); }
};

// 1024 experts and 128 tokens of 32 KiB are 2^32 bytes of rows, all zero but those of two experts;
// the routes of the finalize name just these. Zeros add nothing, so the reference sees two experts.
TEST_F(Large, RowsOfFourGigabytes) {
  constexpr int kExperts = moe::kReductionExpertsMax, kFirst = 1, kLast = kExperts - 1;
  InputOptions options;
  options.shape = {128, 16384, comm::WireType::kBf16};
  options.experts = options.top_k = 2;
  options.dropped_routes = false;
  Inputs in = MakeInputs(options, 0);
  const int64_t row_elements = int64_t{128} * 16384;
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kExperts * row_elements * 2), cudaSuccess);
  const std::unique_ptr<void, Freed> rows(memory);
  ASSERT_EQ(cudaMemset(rows.get(), 0, kExperts * row_elements * 2), cudaSuccess);
  std::vector<float> scales(kExperts * 128, 0.5f);
  std::vector<float> weights(128 * 2);
  for (int e = 0; e < 2; ++e) {
    const int expert = e == 0 ? kFirst : kLast;
    ASSERT_EQ(
        cudaMemcpy(static_cast<uint16_t*>(rows.get()) + expert * row_elements,
                   in.rows.data() + e * row_elements, row_elements * 2, cudaMemcpyHostToDevice),
        cudaSuccess);
    for (int t = 0; t < 128; ++t) {
      scales[expert * 128 + t] = weights[2 * t + e] = in.scales[e * 128 + t];
      in.indices[2 * t + e] = expert * 128 + t;
    }
  }
  const moe::Rows partial = moe::ReferencePartial(options.shape, in.reduction);
  const moe::NormResult expected = moe::ReferenceSumAndNorm(options.shape, {partial}, in.norm);
  // Uploaded with the large arrays' place taken by what fits the host.
  in.scales = scales;
  in.reduction.scales = in.scales.data();
  in.weights.resize(weights.size() * 4);
  std::memcpy(in.weights.data(), weights.data(), in.weights.size());
  in.finalize.weights = in.weights.data();
  in.finalize.weight_type = moe::ScalarType::kFp32;
  in.finalize.routed_scaling_factor = 1.0f;
  auto device = DeviceInputs::Upload(in, options.shape);
  ASSERT_TRUE(device.ok()) << device.status();
  moe::ReductionArguments reduction = device->reduction();
  moe::FinalizeArguments finalize = device->finalize();
  reduction.rows = finalize.rows = rows.get();
  reduction.experts = kExperts;
  finalize.row_count = int64_t{kExperts} * 128;

  auto world = StreamWorld::Create(1, GpuGroup(128, 16384, absl::Seconds(10)));
  ASSERT_TRUE(world.ok()) << world.status();
  const auto check = [&](const char* what) {
    STOKER_ASSERT_OK((*world)->Synchronize(absl::Seconds(20)));
    auto actual = device->Download();
    ASSERT_TRUE(actual.ok()) << actual.status();
    EXPECT_EQ(DifferenceInBits(options.shape, expected.residual_out, actual->residual_out), "")
        << what;
    EXPECT_EQ(DifferenceInBits(options.shape, expected.norm_out, actual->norm_out), "") << what;
    STOKER_ASSERT_OK(device->Poison((*world)->stream(0)));
  };
  STOKER_ASSERT_OK(moe::MoeReduceAllReduceRmsNorm((*world)->communicator(0), options.shape,
                                                  reduction, device->norm(), {},
                                                  (*world)->stream(0)));
  check("reduction");
  STOKER_ASSERT_OK(moe::MoeFinalizeAllReduceRmsNorm(
      (*world)->communicator(0), options.shape, finalize, device->norm(), {}, (*world)->stream(0)));
  check("finalize");
  STOKER_ASSERT_OK(moe::MoeFinalize(options.shape, finalize, device->norm().norm_out,
                                    /*programmatic_launch=*/false, (*world)->stream(0)));
  STOKER_ASSERT_OK((*world)->Synchronize(absl::Seconds(20)));
  auto actual = device->Download();
  ASSERT_TRUE(actual.ok()) << actual.status();
  EXPECT_EQ(DifferenceInBits(options.shape, partial, actual->norm_out), "") << "finalize alone";
}

}  // namespace
}  // namespace stoker::testing
