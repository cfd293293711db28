#include "testing/all_pairs.h"

#include <set>
#include <tuple>

#include "testing/inputs.h"

namespace stoker::testing {
namespace {

using Pair = std::tuple<int, int, int, int>;  // factor, value, later factor, its value
constexpr int kCandidates = 40;

std::set<Pair> AllPairsOf(const std::vector<int>& levels) {
  std::set<Pair> pairs;
  for (int a = 0; a < static_cast<int>(levels.size()); ++a) {
    for (int b = a + 1; b < static_cast<int>(levels.size()); ++b) {
      for (int i = 0; i < levels[a]; ++i) {
        for (int j = 0; j < levels[b]; ++j) pairs.insert({a, i, b, j});
      }
    }
  }
  return pairs;
}

std::vector<Pair> PairsOf(const std::vector<int>& values) {
  std::vector<Pair> pairs;
  for (int a = 0; a < static_cast<int>(values.size()); ++a) {
    for (int b = a + 1; b < static_cast<int>(values.size()); ++b) {
      pairs.push_back({a, values[a], b, values[b]});
    }
  }
  return pairs;
}

}  // namespace

std::vector<std::vector<int>> AllPairs(const std::vector<int>& levels, uint64_t seed) {
  Random random(seed);
  std::set<Pair> open = AllPairsOf(levels);
  std::vector<std::vector<int>> cases;
  while (!open.empty()) {
    std::vector<int> best;
    int best_new = -1;
    for (int candidate = 0; candidate < kCandidates; ++candidate) {
      // Starts from a pair that is still open, so that every case closes at least one.
      std::vector<int> values(levels.size());
      for (size_t f = 0; f < levels.size(); ++f) {
        values[f] = static_cast<int>(random.Below(static_cast<uint32_t>(levels[f])));
      }
      auto start = open.begin();
      std::advance(start, random.Below(static_cast<uint32_t>(open.size())));
      values[std::get<0>(*start)] = std::get<1>(*start);
      values[std::get<2>(*start)] = std::get<3>(*start);
      int closes = 0;
      for (const Pair& pair : PairsOf(values)) closes += static_cast<int>(open.count(pair));
      if (closes > best_new) {
        best_new = closes;
        best = values;
      }
    }
    for (const Pair& pair : PairsOf(best)) open.erase(pair);
    cases.push_back(best);
  }
  return cases;
}

}  // namespace stoker::testing
