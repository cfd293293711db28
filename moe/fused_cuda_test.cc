// The fused tails on one GPU, ranks as streams: bits equal to the reference, whatever the shape.
#include "moe/fused_cuda.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "testing/comparers.h"
#include "testing/inputs.h"
#include "testing/stream_world.h"

namespace stoker::moe {
namespace {

using stoker::testing::DeviceInputs;
using stoker::testing::DifferenceInBits;
using stoker::testing::Expected;
using stoker::testing::HasGpu;
using stoker::testing::InputOptions;
using stoker::testing::Inputs;
using stoker::testing::MakeInputs;
using stoker::testing::StreamWorld;

#define ASSERT_OK(expr)                   \
  do {                                    \
    const absl::Status status_ = (expr);  \
    ASSERT_TRUE(status_.ok()) << status_; \
  } while (false)

struct Case {
  int world;
  int tokens;
  int hidden;
  int top_k;
  comm::WireType type;
  bool programmatic;
};

class FusedCuda : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(FusedCuda, EqualsTheReferenceBitForBit) {
  const Case c = GetParam();
  comm::GroupOptions group;
  group.hidden_max = 16384;
  group.timeout = group.startup_timeout = absl::Seconds(5);
  auto world = StreamWorld::Create(c.world, group);
  ASSERT_TRUE(world.ok()) << world.status();
  InputOptions options;
  options.shape = {c.tokens, c.hidden, c.type};
  options.top_k = c.top_k;
  options.dropped_routes = true;
  options.special_values = true;
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    options.seed = seed;
    options.cold = seed == 2;
    options.weight_type = seed == 2 ? ScalarType::kFp32 : ScalarType::kWire;
    std::vector<Inputs> inputs;
    std::vector<DeviceInputs> device;
    for (int rank = 0; rank < c.world; ++rank) {
      inputs.push_back(MakeInputs(options, rank));
      auto uploaded = DeviceInputs::Upload(inputs.back(), options.shape);
      ASSERT_TRUE(uploaded.ok()) << uploaded.status();
      device.push_back(std::move(*uploaded));
    }
    for (int launch = 0; launch < 3; ++launch) {
      for (int rank = 0; rank < c.world; ++rank) {
        ASSERT_OK(MoeFinalizeAllReduceRmsNorm((*world)->communicator(rank), options.shape,
                                              device[rank].finalize(), device[rank].norm(),
                                              {.site = 7, .programmatic_launch = c.programmatic},
                                              (*world)->stream(rank)));
      }
    }
    ASSERT_OK((*world)->Synchronize(absl::Seconds(20)));
    ASSERT_OK((*world)->communicator(0).Health());
    const NormResult expected = Expected(options.shape, inputs);
    for (int rank = 0; rank < c.world; ++rank) {
      auto actual = device[rank].Download();
      ASSERT_TRUE(actual.ok()) << actual.status();
      EXPECT_EQ(DifferenceInBits(options.shape, expected.residual_out, actual->residual_out), "")
          << "residual_out of rank " << rank;
      EXPECT_EQ(DifferenceInBits(options.shape, expected.norm_out, actual->norm_out), "")
          << "norm_out of rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FusedCuda,
                         ::testing::Values(Case{1, 3, 2048, 8, comm::WireType::kBf16, false},
                                           Case{2, 1, 7168, 8, comm::WireType::kBf16, false},
                                           Case{2, 5, 2880, 6, comm::WireType::kFp16, true},
                                           Case{4, 1, 7168, 8, comm::WireType::kBf16, true},
                                           Case{4, 16, 7168, 8, comm::WireType::kBf16, true},
                                           Case{4, 33, 6144, 10, comm::WireType::kFp16, false},
                                           Case{4, 64, 7168, 8, comm::WireType::kBf16, true},
                                           Case{4, 128, 7168, 8, comm::WireType::kBf16, true},
                                           Case{3, 7, 16384, 32, comm::WireType::kBf16, true},
                                           Case{8, 18, 4096, 1, comm::WireType::kBf16, true},
                                           Case{5, 2, 8, 3, comm::WireType::kBf16, false},
                                           Case{4, 0, 7168, 8, comm::WireType::kBf16, true}),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return absl::StrCat(
                               "world", info.param.world, "_tokens", info.param.tokens, "_hidden",
                               info.param.hidden, "_topk", info.param.top_k,
                               info.param.type == comm::WireType::kBf16 ? "_bf16" : "_fp16",
                               info.param.programmatic ? "_programmatic" : "");
                         });

}  // namespace
}  // namespace stoker::moe
