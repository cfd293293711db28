// A launch keeps to its SM budget: it runs, eager and replayed, while somebody else's kernel holds
// all other SMs of the GPU, and one with a budget that is not there ends at its deadline.
#include "absl/time/clock.h"
#include "testing/gpu/gpu_fixture.h"
#include "testing/gpu/occupier.h"

namespace stoker::testing {
namespace {

constexpr int kWorld = 2;
constexpr int kBudget = 8;  // SMs of a rank
constexpr absl::Duration kDeadline = absl::Milliseconds(500);

class SmBudget : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  }
  // 40 tokens: more than the budget holds at once.
  absl::Status Start(int budget) {
    InputOptions options;
    options.shape = shape_;
    STOKER_ASSIGN_OR_RETURN(
        world_, StreamWorld::Create(kWorld, GpuGroup(shape_.tokens, shape_.hidden, kDeadline),
                                    {.sm_budget = budget}));
    STOKER_ASSIGN_OR_RETURN(data_, UploadAll(options, kWorld));
    // CUDA loads a kernel at its first launch, which may wait for kernels that run.
    STOKER_RETURN_IF_ERROR(LaunchAll(*world_, shape_, data_.device, {}));
    return world_->Synchronize(2 * kDeadline);
  }
  std::string Difference() const {
    return Differences(shape_, Expected(shape_, data_.host), data_.device);
  }

  int sms_ = 0;
  const moe::Shape shape_{40, 7168, comm::WireType::kBf16};
  std::unique_ptr<StreamWorld> world_;
  RankData data_;
};

TEST_F(SmBudget, LaunchesRunBesideAKernelThatHoldsAllOtherSms) {
  STOKER_ASSERT_OK(Start(kBudget));
  auto occupier = Occupier::Start(sms_ - kWorld * kBudget, absl::Seconds(5));
  ASSERT_TRUE(occupier.ok()) << occupier.status();
  for (int launch = 0; launch < 20; ++launch) {
    for (int rank = 0; rank < kWorld; ++rank) {
      STOKER_ASSERT_OK(data_.device[rank].Poison(world_->stream(rank)));
    }
    STOKER_ASSERT_OK(LaunchAll(*world_, shape_, data_.device, {}));
    STOKER_ASSERT_OK(world_->Synchronize(2 * kDeadline));
    for (int rank = 0; rank < kWorld; ++rank) STOKER_ASSERT_OK(world_->communicator(rank).Health());
  }
  EXPECT_TRUE((*occupier)->StillRuns());
  EXPECT_EQ(Difference(), "");
}

TEST_F(SmBudget, ALaunchThatFindsItsSmsHeldEndsAtItsDeadline) {
  STOKER_ASSERT_OK(Start(sms_ / kWorld));
  {
    auto occupier = Occupier::Start(sms_ - 2, absl::Seconds(5));
    ASSERT_TRUE(occupier.ok()) << occupier.status();
    STOKER_ASSERT_OK(LaunchAll(*world_, shape_, data_.device, {}));
    absl::SleepFor(2 * kDeadline);
    EXPECT_TRUE((*occupier)->StillRuns());
  }
  STOKER_ASSERT_OK(world_->Synchronize(4 * kDeadline));
  const absl::Status health = world_->communicator(0).Health();
  EXPECT_EQ(health.code(), absl::StatusCode::kDeadlineExceeded) << health;
  STOKER_ASSERT_OK(world_->OnAllRanks([](comm::CudaCommunicator& c, comm::RankExchange& e) {
    return c.Reset(e, absl::Seconds(5));
  }));
  STOKER_ASSERT_OK(LaunchAll(*world_, shape_, data_.device, {}));
  STOKER_ASSERT_OK(world_->Synchronize(2 * kDeadline));
  EXPECT_EQ(Difference(), "");
}

}  // namespace
}  // namespace stoker::testing
