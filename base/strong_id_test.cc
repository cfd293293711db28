#include "base/strong_id.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>

namespace stoker {
namespace {

using Layer = StrongId<struct LayerTag, int32_t>;
using Expert = StrongId<struct ExpertTag, int32_t>;

TEST(StrongId, GivesItsNumberBackAndComparesByIt) {
  EXPECT_EQ(Layer(7).value(), 7);
  EXPECT_EQ(Layer(7), Layer(7));
  EXPECT_NE(Layer(7), Layer(8));
  EXPECT_EQ(Layer().value(), 0);
}

TEST(StrongId, IsNeitherANumberNorAnotherId) {
  EXPECT_FALSE((std::is_convertible_v<int32_t, Layer>));
  EXPECT_FALSE((std::is_convertible_v<Layer, int32_t>));
  EXPECT_FALSE((std::is_constructible_v<Layer, Expert>));
}

}  // namespace
}  // namespace stoker
