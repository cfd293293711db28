// Cases that cover every pair of values of every two factors (pairwise testing: Cohen, Dalal,
// Fredman and Patton, 1997, greedy with a seeded choice among candidates).
#pragma once

#include <cstdint>
#include <vector>

namespace stoker::testing {

// `levels[f]` is how many values factor f has; a case holds one index a factor.
std::vector<std::vector<int>> AllPairs(const std::vector<int>& levels, uint64_t seed);

}  // namespace stoker::testing
