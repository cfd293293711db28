// Which resident expert of a layer has to go.
//
//   Popularity use(experts, PolicyKind::kDecayedLfu);
//   use.Touch(expert, step);
//   int victim = use.Coldest(candidates, step);
//
// Decayed LFU: after the group of a step, count <- count * alpha^(steps since last use) + 1, alpha
// 0.95; the victim has the smallest count decayed to now, ties the least recent. LRU: the least
// recent. One layer; not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace stoker::offload {

enum class PolicyKind { kDecayedLfu, kLru };

class Popularity {
 public:
  Popularity(int experts, PolicyKind kind) : kind_(kind), uses_(experts) {}

  void Touch(int expert, int64_t step);
  // One of `candidates`, which must not be empty.
  int Coldest(const std::vector<int>& candidates, int64_t step) const;

 private:
  struct Use {
    double count = 0;
    int64_t last = -1;
  };
  double Score(int expert, int64_t step) const;

  PolicyKind kind_;
  std::vector<Use> uses_;
};

}  // namespace stoker::offload
