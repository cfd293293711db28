#include "testing/all_pairs.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace stoker::testing {
namespace {

TEST(AllPairs, EveryPairOfValuesOccursInFarFewerCasesThanThereAreCombinations) {
  const std::vector<int> levels = {12, 5, 4, 3, 3, 2, 2, 2};
  const auto cases = AllPairs(levels, 1);
  std::set<std::tuple<size_t, int, size_t, int>> seen;
  for (const auto& values : cases) {
    for (size_t a = 0; a < levels.size(); ++a) {
      ASSERT_LT(values[a], levels[a]);
      for (size_t b = a + 1; b < levels.size(); ++b) seen.insert({a, values[a], b, values[b]});
    }
  }
  size_t wanted = 0;
  for (size_t a = 0; a < levels.size(); ++a) {
    for (size_t b = a + 1; b < levels.size(); ++b) wanted += levels[a] * levels[b];
  }
  EXPECT_EQ(seen.size(), wanted);
  EXPECT_LT(cases.size(), 100u);
  EXPECT_EQ(cases, AllPairs(levels, 1));
}

}  // namespace
}  // namespace stoker::testing
