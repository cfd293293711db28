// How often a cache of a given size and policy would have hit on a trace, without any cache.
//
//   const ReplayResult result = Replay(trace, {ReplayPolicy::kDecayedLfu, 16, false});
//
// One group per (layer, step), all its experts protected while it is served; a miss without an
// unprotected victim is counted and not inserted; caches start empty, nothing is excluded. Decayed
// LFU: after the group count <- count * alpha^(steps since last use) + 1, the victim has the
// smallest decayed count, ties the least recent. Belady knows the future: the bound. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/trace/trace.h"

namespace stoker::offload {

// kEstimatedNextUse: the farthest by layers until its layer's turn plus expected further steps,
// from a decayed frequency with alpha 0.9.
enum class ReplayPolicy {
  kBelady,
  kLru,
  kLfu,
  kLru2,
  kDecayedLfu,
  kEstimatedNextUse,
  kFifo,
  kRandom
};
inline constexpr ReplayPolicy kAllReplayPolicies[] = {
    ReplayPolicy::kBelady, ReplayPolicy::kLru,        ReplayPolicy::kLfu,
    ReplayPolicy::kLru2,   ReplayPolicy::kDecayedLfu, ReplayPolicy::kEstimatedNextUse,
    ReplayPolicy::kFifo,   ReplayPolicy::kRandom};
const char* PolicyName(ReplayPolicy policy);

struct ReplayOptions {
  ReplayPolicy policy = ReplayPolicy::kDecayedLfu;
  int slots_per_layer = 16;
  // One pool of layers * slots_per_layer slots, or a fixed share a layer.
  bool global = false;
  double alpha = 0.95;  // of decayed LFU
};

struct ReplayResult {
  int64_t uses = 0;
  int64_t hits = 0;
  double hit_rate() const { return uses == 0 ? 0 : static_cast<double>(hits) / uses; }
};

// Experts of a token at a layer that are wanted twice count once.
ReplayResult Replay(const Trace& trace, const ReplayOptions& options);

}  // namespace stoker::offload
