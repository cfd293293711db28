#include <algorithm>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "offload/trace/replay.h"
#include "offload/trace/trace.h"
#include "tools/stoker/offload_bench.h"

namespace stoker::command {
namespace {

using offload::ReplayPolicy;

constexpr int kSlots[] = {2, 4, 8, 12, 16, 24, 32};

double HitRate(const offload::Trace& trace, ReplayPolicy policy, int slots, bool global) {
  return 100 * offload::Replay(trace, {policy, slots, global}).hit_rate();
}

void PrintTable(const offload::Trace& trace, bool global) {
  absl::PrintF("\n%-12s", "slots/layer");
  for (const ReplayPolicy policy : offload::kAllReplayPolicies) {
    absl::PrintF(" %12s", offload::PolicyName(policy));
  }
  absl::PrintF("\n");
  for (const int slots : kSlots) {
    if (slots > trace.experts) break;
    absl::PrintF("%-12d", slots);
    for (const ReplayPolicy policy : offload::kAllReplayPolicies) {
      absl::PrintF(" %12.1f", HitRate(trace, policy, slots, global));
    }
    absl::PrintF("\n");
    std::fflush(stdout);
  }
}

// The best policy that needs no knowledge of the future, by the mean over sizes at or above a
// token's working set; ties to the simpler one, which stands first.
void Recommend(const offload::Trace& trace) {
  size_t top_k = 0;
  for (const auto& group : trace.groups) top_k = std::max(top_k, group.routes.size());
  const char* best_name = "";
  double best = -1;
  for (const bool global : {false, true}) {
    for (const ReplayPolicy policy : offload::kAllReplayPolicies) {
      if (policy == ReplayPolicy::kBelady) continue;
      double sum = 0;
      for (const int slots : kSlots) {
        if (slots >= static_cast<int>(top_k) && slots <= trace.experts) {
          sum += HitRate(trace, policy, slots, global);
        }
      }
      if (sum > best) {
        best = sum;
        best_name = offload::PolicyName(policy);
      }
    }
    if (!global) {
      absl::PrintF("\nRecommended, a fixed share a layer (what the engine has): %s\n", best_name);
      best = -1;
    } else {
      absl::PrintF("Best of one pool for all layers: %s\n", best_name);
    }
  }
  absl::PrintF("A token wants %d experts a layer: with fewer slots a call runs in parts.\n", top_k);
}

}  // namespace

int RunOffloadReplay(const std::string& path) {
  auto trace = offload::ReadTrace(path);
  if (!trace.ok()) {
    absl::FPrintF(stderr, "%s\n", trace.status().ToString());
    return 1;
  }
  const offload::Trace decode = offload::DecodeOnly(*trace);
  if (decode.groups.empty()) {
    absl::FPrintF(stderr, "%s has no decode records (phase 1)\n", path);
    return 1;
  }
  absl::PrintF("%s: %d layers, %d experts, %d groups of decode records\n", path, decode.layers,
               decode.experts, decode.groups.size());
  absl::PrintF("Hit rates in percent; caches start empty, nothing is excluded.\n");
  absl::PrintF("\nA fixed share of slots a layer:");
  PrintTable(decode, false);
  absl::PrintF("\nOne pool for all layers:");
  PrintTable(decode, true);
  Recommend(decode);
  return 0;
}

}  // namespace stoker::command
