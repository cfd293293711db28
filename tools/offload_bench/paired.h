// Differences of runs that were measured in pairs.
#pragma once

#include <cmath>
#include <vector>

namespace stoker::tools {

struct Interval {
  double mean = 0;
  double low = 0;  // 95%, Student's t
  double high = 0;
};

// (a[i] - b[i]) / b[i] over the pairs, in percent. At least two pairs of equal number.
inline Interval PairedDifference(const std::vector<double>& a, const std::vector<double>& b) {
  // Two-sided 95% quantiles for 1 to 30 degrees of freedom; the normal one beyond.
  constexpr double kT[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                           2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                           2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  const size_t n = a.size();
  double mean = 0;
  for (size_t i = 0; i < n; ++i) mean += 100 * (a[i] - b[i]) / b[i] / n;
  double squares = 0;
  for (size_t i = 0; i < n; ++i) squares += std::pow(100 * (a[i] - b[i]) / b[i] - mean, 2);
  const double t = n - 1 <= 30 ? kT[n - 2] : 1.96;
  const double half = t * std::sqrt(squares / (n - 1) / n);
  return {mean, mean - half, mean + half};
}

}  // namespace stoker::tools
