#include "testing/comparers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace stoker::testing {
namespace {

constexpr comm::WireType kBf16 = comm::WireType::kBf16;
constexpr comm::WireType kFp16 = comm::WireType::kFp16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

moe::Shape ShapeOf(comm::WireType type) {
  moe::Shape shape;
  shape.tokens = 3;
  shape.hidden = 8;
  shape.wire_type = type;
  return shape;
}

TEST(DifferenceInBits, EqualBitsAreEmptyNanIncluded) {
  const std::vector<uint16_t> row(24, 0x7FFF);
  EXPECT_EQ(DifferenceInBits(ShapeOf(kBf16), row, row), "");
}

TEST(DifferenceInBits, NamesTheFirstElementTheCountAndBothPatternsWithTheirValues) {
  const std::vector<uint16_t> expected(24, 0x3F80);
  std::vector<uint16_t> actual = expected;
  actual[2 * 8 + 5] = 0x4000;
  actual[23] = 0;
  EXPECT_EQ(DifferenceInBits(ShapeOf(kBf16), expected, actual),
            "2 of 24 elements differ; first at token 2, column 5: expected 3f80 (1), got 4000 (2)");
  EXPECT_EQ(DifferenceInBits(ShapeOf(kFp16), expected, actual),
            "2 of 24 elements differ; first at token 2, column 5: expected 3f80 (1.875), got 4000 "
            "(2)");
}

TEST(DifferenceInBits, BothZerosAndBothNansDiffer) {
  const std::vector<uint16_t> zeros(24, 0x0000);
  std::vector<uint16_t> actual = zeros;
  actual[0] = 0x8000;
  EXPECT_NE(DifferenceInBits(ShapeOf(kBf16), zeros, actual), "");
  const std::vector<uint16_t> nans(24, 0x7FFF);
  actual = nans;
  actual[0] = 0x7FC0;
  EXPECT_NE(DifferenceInBits(ShapeOf(kBf16), nans, actual), "");
}

TEST(DifferenceInBits, AnotherSizeIsADifference) {
  EXPECT_EQ(DifferenceInBits(ShapeOf(kBf16), std::vector<uint16_t>(24), std::vector<uint16_t>(16)),
            "16 elements where 24 are expected");
}

TEST(Errors, MeanAndMaximumOfTheAbsoluteDifference) {
  const ErrorStatistics errors = Errors(kBf16, {1.0, 2.25, -1.0, 0.0}, {0x3F80, 0x4000, 0, 0});
  EXPECT_DOUBLE_EQ(errors.mean, (0.25 + 1.0) / 4);
  EXPECT_DOUBLE_EQ(errors.max, 1.0);
  EXPECT_DOUBLE_EQ(Errors(kFp16, {1.5}, {0x3C00}).max, 0.5);
  EXPECT_EQ(Errors(kBf16, {}, {}).mean, 0.0);
}

TEST(Errors, ANanWhereNoneIsExactIsInfinitelyWrong) {
  // First and last: a maximum that passes over NaN would depend on the place.
  for (const size_t at : {0, 3}) {
    std::vector<uint16_t> actual(4, 0x3F80);
    actual[at] = 0x7FFF;
    const ErrorStatistics errors = Errors(kBf16, std::vector<double>(4, 1.0), actual);
    EXPECT_EQ(errors.max, kInfinity);
    EXPECT_EQ(errors.mean, kInfinity);
  }
  EXPECT_EQ(Errors(kBf16, {kNan}, {0x3F80}).max, kInfinity);
  EXPECT_EQ(Errors(kBf16, {-kInfinity}, {0x7F80}).max, kInfinity);
}

TEST(Errors, TheSameInfinityAndNanForNanAreRight) {
  EXPECT_EQ(Errors(kBf16, {kInfinity, -kInfinity, kNan}, {0x7F80, 0xFF80, 0x7FFF}).max, 0.0);
}

TEST(Errors, AMissingElementIsInfinitelyWrong) {
  EXPECT_EQ(Errors(kBf16, {1.0, 1.0}, {0x3F80}).max, kInfinity);
}

TEST(RoundingFloor, IsHalfAUnitInTheLastPlaceAtMost) {
  EXPECT_EQ(RoundingFloor(kBf16, {1.0, 1.0078125}).max, 0.0);
  EXPECT_DOUBLE_EQ(RoundingFloor(kBf16, {1.00390625}).max, 0.00390625);  // a tie
  EXPECT_DOUBLE_EQ(RoundingFloor(kFp16, {1.00390625}).max, 0.0);
}

}  // namespace
}  // namespace stoker::testing
