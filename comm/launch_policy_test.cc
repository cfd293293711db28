#include "comm/launch_policy.h"

#include <gtest/gtest.h>

#include <utility>

namespace stoker::comm {
namespace {

constexpr Placement kQuarterOfH200{.sms = 33};

constexpr Placement kEighthOfH200{.sms = 16};
constexpr Placement kH200{.sms = 132};

LaunchShape OneShotShape(int tokens, int packets, const Placement& placement) {
  return ChooseLaunchShape(Protocol::kOneShot, 4, tokens, packets, placement);
}

LaunchShape TwoShotShape(int tokens, int packets, const Placement& placement) {
  return ChooseLaunchShape(Protocol::kTwoShot, 4, tokens, packets, placement);
}

TEST(LaunchPolicy, FewTokensSpreadOverTheSms) {
  EXPECT_EQ(OneShotShape(1, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 7, .threads = 128, .vectors = 1, .clusters = 1}));
  EXPECT_EQ(OneShotShape(4, 896, kQuarterOfH200).cluster, 7);
  EXPECT_EQ(OneShotShape(16, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 2, .threads = 448, .vectors = 1, .clusters = 16}));
}

TEST(LaunchPolicy, NoIdleWarpsWhereARowCanBeSplitEvenly) {
  // Five CTAs would fit as well, with two of their thirty warps beyond the row.
  EXPECT_EQ(OneShotShape(12, 896, {.sms = 66}).cluster, 4);
  // 13 warps cannot.
  EXPECT_EQ(OneShotShape(2, 416, kQuarterOfH200).cluster, 4);
}

TEST(LaunchPolicy, SomeMoreTokensShareSmsAsSmallCtas) {
  const LaunchShape small{.cluster = 4, .threads = 224, .vectors = 1, .clusters = 18};
  EXPECT_EQ(OneShotShape(18, 896, kQuarterOfH200), small);
  EXPECT_EQ(TwoShotShape(18, 896, kQuarterOfH200), small);
  EXPECT_EQ(TwoShotShape(8, 896, kEighthOfH200).cluster, 4);
}

TEST(LaunchPolicy, ManyTokensOneShotTakeOneCtaEachThenTwoVectorsAThread) {
  EXPECT_EQ(OneShotShape(32, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 1, .threads = 896, .vectors = 1, .clusters = 32}));
  EXPECT_EQ(OneShotShape(64, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 1, .threads = 448, .vectors = 2, .clusters = 64}));
  EXPECT_EQ(OneShotShape(128, 896, kQuarterOfH200).clusters, 66);
}

TEST(LaunchPolicy, TwoRanksTakeTwoCtasEachAsLongAsAllTokensFit) {
  const auto shape = [](int tokens) {
    return ChooseLaunchShape(Protocol::kOneShot, 2, tokens, 896, {.sms = 66});
  };
  EXPECT_EQ(shape(64), (LaunchShape{.cluster = 2, .threads = 448, .vectors = 1, .clusters = 64}));
  EXPECT_EQ(shape(128), (LaunchShape{.cluster = 1, .threads = 448, .vectors = 2, .clusters = 128}));
}

TEST(LaunchPolicy, ManyTokensTwoShotTakeTwoCtasEach) {
  EXPECT_EQ(TwoShotShape(128, 896, kQuarterOfH200),
            (LaunchShape{.cluster = 2, .threads = 448, .vectors = 1, .clusters = 33}));
  EXPECT_EQ(TwoShotShape(16, 512, kEighthOfH200),
            (LaunchShape{.cluster = 2, .threads = 256, .vectors = 1, .clusters = 16}));
  EXPECT_EQ(TwoShotShape(64, 416, kEighthOfH200).cluster, 1);  // 13 warps
}

TEST(LaunchPolicy, RowsThatFitNoCtaTakeSeveral) {
  EXPECT_EQ(OneShotShape(128, 2048, kQuarterOfH200),
            (LaunchShape{.cluster = 2, .threads = 512, .vectors = 2, .clusters = 16}));
  EXPECT_EQ(OneShotShape(128, 2048, {.sms = 33, .cluster_max = 1}).vectors, 4);
}

TEST(LaunchPolicy, TwoShotWhereTheBytesCostMoreThanTheHop) {
  for (int tokens : {1, 128, 2048}) {
    EXPECT_EQ(ChooseProtocol(2, tokens, 896, {.sms = 66}, SharedGpuWire(2)), Protocol::kOneShot);
  }
  EXPECT_EQ(ChooseProtocol(4, 32, 896, kQuarterOfH200, SharedGpuWire(4)), Protocol::kOneShot);
  EXPECT_EQ(ChooseProtocol(4, 128, 896, kQuarterOfH200, SharedGpuWire(4)), Protocol::kTwoShot);
  EXPECT_EQ(ChooseProtocol(8, 4, 896, kEighthOfH200, SharedGpuWire(8)), Protocol::kOneShot);
  EXPECT_EQ(ChooseProtocol(8, 8, 896, kEighthOfH200, SharedGpuWire(8)), Protocol::kTwoShot);
  EXPECT_EQ(ChooseProtocol(8, 4, 896, kH200, kNvlink4Wire), Protocol::kOneShot);
  EXPECT_EQ(ChooseProtocol(8, 64, 896, kH200, kNvlink4Wire), Protocol::kTwoShot);
  EXPECT_EQ(ChooseProtocol(8, 0, 896, kH200, kNvlink4Wire), Protocol::kOneShot);
}

TEST(LaunchPolicy, TwoShotWhereTheTokensDoNotFitAtOnce) {
  const Wire fast{.bytes_per_us = 1e12, .hop_us = 1.0};
  EXPECT_EQ(ChooseProtocol(4, 33, 896, kQuarterOfH200, fast), Protocol::kOneShot);
  EXPECT_EQ(ChooseProtocol(4, 34, 896, kQuarterOfH200, fast), Protocol::kTwoShot);
}

TEST(LaunchPolicy, NoTokensIsOneSmallCta) {
  EXPECT_EQ(OneShotShape(0, 896, kQuarterOfH200), LaunchShape{});
}

TEST(LaunchPolicy, EveryShapeCoversTheRowAndIsCoResident) {
  for (int cluster_max : {1, 8}) {
    for (int sms : {1, 2, 8, 16, 33, 66, 132}) {
      for (int in_flight : {1, 2}) {
        const Placement placement{
            .sms = sms, .cluster_max = cluster_max, .launches_in_flight = in_flight};
        for (int packets = 1; packets <= 2048; packets += packets < 300 ? 1 : 97) {
          for (int tokens : {1, 2, 3, 7, 16, 33, 37, 64, 128, 2048}) {
            for (auto [protocol, world] :
                 {std::pair(Protocol::kOneShot, 2), std::pair(Protocol::kOneShot, 4),
                  std::pair(Protocol::kTwoShot, 4)}) {
              const LaunchShape shape =
                  ChooseLaunchShape(protocol, world, tokens, packets, placement);
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
}

}  // namespace
}  // namespace stoker::comm
