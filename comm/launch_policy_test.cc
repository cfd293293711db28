#include "comm/launch_policy.h"

#include <gtest/gtest.h>

namespace stoker::comm {
namespace {

constexpr Placement kQuarterOfH200{.sms = 33};

TEST(LaunchPolicy, FewTokensSpreadOverTheSms) {
  EXPECT_EQ(ChooseLaunchShape(1, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 7, .threads = 128, .vectors = 1, .clusters = 1}));
  EXPECT_EQ(ChooseLaunchShape(4, 896, kQuarterOfH200).cluster, 7);
  EXPECT_EQ(ChooseLaunchShape(16, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 2, .threads = 448, .vectors = 1, .clusters = 16}));
}

TEST(LaunchPolicy, SomeMoreTokensShareSmsAsSmallCtas) {
  EXPECT_EQ(ChooseLaunchShape(18, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 4, .threads = 224, .vectors = 1, .clusters = 18}));
}

TEST(LaunchPolicy, ManyTokensTakeOneCtaEachThenTwoVectorsAThread) {
  EXPECT_EQ(ChooseLaunchShape(32, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 1, .threads = 896, .vectors = 1, .clusters = 32}));
  EXPECT_EQ(ChooseLaunchShape(64, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 1, .threads = 448, .vectors = 2, .clusters = 64}));
  EXPECT_EQ(ChooseLaunchShape(128, 896, kQuarterOfH200).clusters, 66);
}

TEST(LaunchPolicy, TwoShotWhereTheBytesCostMoreThanTheHop) {
  for (int tokens : {1, 128, 2048}) {
    EXPECT_EQ(ChooseProtocol(2, tokens, 896, SharedGpuWire(2)), Protocol::kOneShot);
  }
  EXPECT_EQ(ChooseProtocol(4, 32, 896, SharedGpuWire(4)), Protocol::kOneShot);
  EXPECT_EQ(ChooseProtocol(4, 128, 896, SharedGpuWire(4)), Protocol::kTwoShot);
  EXPECT_EQ(ChooseProtocol(8, 8, 896, SharedGpuWire(8)), Protocol::kOneShot);
  EXPECT_EQ(ChooseProtocol(8, 16, 896, SharedGpuWire(8)), Protocol::kTwoShot);
  EXPECT_EQ(ChooseProtocol(8, 4, 896, kNvlink4Wire), Protocol::kOneShot);
  EXPECT_EQ(ChooseProtocol(8, 64, 896, kNvlink4Wire), Protocol::kTwoShot);
  EXPECT_EQ(ChooseProtocol(8, 0, 896, kNvlink4Wire), Protocol::kOneShot);
}

TEST(LaunchPolicy, NoTokensIsOneSmallCta) {
  EXPECT_EQ(ChooseLaunchShape(0, 896, kQuarterOfH200), LaunchShape{});
}

TEST(LaunchPolicy, EveryShapeCoversTheRowAndIsCoResident) {
  for (int cluster_max : {1, 8}) {
    for (int sms : {1, 2, 8, 16, 33, 66, 132}) {
      for (int in_flight : {1, 2}) {
        const Placement placement{
            .sms = sms, .cluster_max = cluster_max, .launches_in_flight = in_flight};
        for (int packets = 1; packets <= 2048; packets += packets < 300 ? 1 : 97) {
          for (int tokens : {1, 2, 3, 7, 16, 33, 37, 64, 128, 2048}) {
            const LaunchShape shape = ChooseLaunchShape(tokens, packets, placement);
            ASSERT_GE(shape.cluster * shape.threads * shape.vectors, packets) << shape.ToString();
            ASSERT_LE(shape.cta_threads(), placement.threads_per_cta) << shape.ToString();
            ASSERT_LE(shape.cluster, cluster_max);
            ASSERT_LE(shape.clusters, tokens);
            const int room = std::max(1, sms / in_flight) * (1024 / shape.cta_threads());
            if (shape.clusters > 1) {
              ASSERT_LE(shape.ctas(), room) << shape.ToString();
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace stoker::comm
