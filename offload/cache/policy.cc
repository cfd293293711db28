#include "offload/cache/policy.h"

#include <cmath>

namespace stoker::offload {
namespace {
constexpr double kAlpha = 0.95;
}  // namespace

double Popularity::Score(int expert, int64_t step) const {
  const Use& use = uses_[expert];
  if (kind_ == PolicyKind::kLru) return static_cast<double>(use.last);
  return use.count * std::pow(kAlpha, static_cast<double>(step - use.last));
}

void Popularity::Touch(int expert, int64_t step) {
  Use& use = uses_[expert];
  use.count = use.count * std::pow(kAlpha, static_cast<double>(step - use.last)) + 1;
  use.last = step;
}

int Popularity::Coldest(const std::vector<int>& candidates, int64_t step) const {
  int coldest = candidates[0];
  for (const int candidate : candidates) {
    const double a = Score(candidate, step);
    const double b = Score(coldest, step);
    if (a < b || (a == b && uses_[candidate].last < uses_[coldest].last)) coldest = candidate;
  }
  return coldest;
}

}  // namespace stoker::offload
