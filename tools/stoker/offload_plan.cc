#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "offload/dispatch/load_plan.h"
#include "offload/machine_limits.h"
#include "offload/store/checkpoint.h"
#include "offload/trace/generator.h"
#include "offload/trace/replay.h"
#include "offload/trace/trace.h"
#include "tools/stoker/offload_checkpoint.h"

ABSL_FLAG(std::vector<std::string>, ram, {}, "budgets of the cache in bytes, or 4G, 512M; a list");
ABSL_FLAG(double, disk_gbps, 1.0, "GB/s at which the store is read, for the bound");
ABSL_FLAG(double, memory_gbps, 20.0, "GB/s at which weights are computed, for the bound");
ABSL_DECLARE_FLAG(std::string, json);
ABSL_DECLARE_FLAG(std::string, trace);
ABSL_DECLARE_FLAG(int, top_k);

namespace stoker::command {
namespace {

constexpr uint64_t kScratchSlots = 2;
constexpr uint64_t kBufferBytes = 32 << 20;  // what the engine takes beside its cache

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  const absl::string_view whole = text;
  int shift = 0;
  if (absl::ConsumeSuffix(&text, "G")) shift = 30;
  if (shift == 0 && absl::ConsumeSuffix(&text, "M")) shift = 20;
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(text, &bytes) || bytes == 0 || bytes > UINT64_MAX >> 30) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ram=", whole, "; give bytes, or a number with G or M"));
  }
  return bytes << shift;
}

absl::StatusOr<offload::Trace> TraceFor(const offload::Checkpoint& checkpoint) {
  const int layers = static_cast<int>(checkpoint.layers().size());
  const std::string path = absl::GetFlag(FLAGS_trace);
  if (path.empty()) {
    const int top_k = absl::GetFlag(FLAGS_top_k);
    if (top_k < 1 || top_k > checkpoint.experts()) {
      return absl::InvalidArgumentError(absl::StrCat("--top_k=", top_k, "; the checkpoint has ",
                                                     checkpoint.experts(), " experts a layer"));
    }
    return offload::GenerateTrace(
        {.layers = layers, .experts = checkpoint.experts(), .top_k = top_k});
  }
  auto trace = offload::ReadTrace(path);
  if (!trace.ok()) return trace.status();
  offload::Trace decode = offload::DecodeOnly(*trace);
  if (decode.groups.empty() || decode.layers > layers || decode.experts > checkpoint.experts()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", decode.groups.size(), " decode records of ", decode.layers,
                     " layers and ", decode.experts, " experts, the checkpoint ", layers, " and ",
                     checkpoint.experts(), "; take a trace of this model"));
  }
  return decode;
}

struct Plan {
  uint64_t slots_per_layer = 0;
  double hit_rate = 0;
  double tokens_per_second = 0;  // at most
};

// Refuses a budget that the engine would refuse.
absl::StatusOr<Plan> PlanBudget(const offload::Checkpoint& checkpoint, const offload::Trace& trace,
                                uint64_t ram) {
  const uint64_t slot = offload::SlotLayout(checkpoint.extents(0, 0)).slot_bytes;
  const uint64_t layers = checkpoint.layers().size();
  const uint64_t limit = offload::ReadMachineLimits().memory_bytes;
  if (ram > limit || kBufferBytes > limit - ram) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cache of ", ram, " bytes and a buffer of ", kBufferBytes, " exceed the ",
                     limit, " bytes that this process may use; lower --ram"));
  }
  if (ram / slot <= kScratchSlots) {
    return absl::InvalidArgumentError(absl::StrCat("--ram=", ram, " holds ", ram / slot,
                                                   " slots of ", slot, " bytes; at least ",
                                                   (kScratchSlots + 1) * slot, " are needed"));
  }
  Plan plan;
  plan.slots_per_layer =
      std::min<uint64_t>((ram / slot - kScratchSlots) / layers, checkpoint.experts());
  if (plan.slots_per_layer > 0) {
    plan.hit_rate = offload::Replay(trace, {offload::ReplayPolicy::kDecayedLfu,
                                            static_cast<int>(plan.slots_per_layer), false})
                        .hit_rate();
  }
  double routes = 0;
  for (const auto& group : trace.groups) routes += static_cast<double>(group.routes.size());
  const double bytes = routes / static_cast<double>(trace.groups.size()) *
                       static_cast<double>(layers * checkpoint.extents(0, 0).bytes());
  const double read = bytes * (1 - plan.hit_rate) / (absl::GetFlag(FLAGS_disk_gbps) * 1e9);
  const double compute = bytes / (absl::GetFlag(FLAGS_memory_gbps) * 1e9);
  plan.tokens_per_second = 1 / std::max(read, compute);
  return plan;
}

absl::Status PlanAll(const std::string& path) {
  if (!(absl::GetFlag(FLAGS_disk_gbps) > 0) || !(absl::GetFlag(FLAGS_memory_gbps) > 0)) {
    return absl::InvalidArgumentError("--disk_gbps and --memory_gbps must be positive");
  }
  if (absl::GetFlag(FLAGS_ram).empty()) {
    return absl::InvalidArgumentError("no budget; give one or more: --ram=2G,4G");
  }
  auto checkpoint = offload::Checkpoint::Open(path);
  if (!checkpoint.ok()) return checkpoint.status();
  auto trace = TraceFor(**checkpoint);
  if (!trace.ok()) return trace.status();
  absl::PrintF("%-16s %12s %8s %14s\n", "cache bytes", "slots/layer", "hits %", "tokens/s <=");
  for (const std::string& text : absl::GetFlag(FLAGS_ram)) {
    const auto ram = ParseBytes(text);
    if (!ram.ok()) return ram.status();
    const auto plan = PlanBudget(**checkpoint, *trace, *ram);
    if (!plan.ok()) return plan.status();
    absl::PrintF("%-16d %12d %8.1f %14.2f\n", *ram, plan->slots_per_layer, 100 * plan->hit_rate,
                 plan->tokens_per_second);
    if (absl::GetFlag(FLAGS_json).empty()) continue;
    std::ofstream out(absl::GetFlag(FLAGS_json), std::ios::app);
    out << nlohmann::ordered_json{{"cache_bytes", *ram},
                                  {"slots_per_layer", plan->slots_per_layer},
                                  {"hit_rate", plan->hit_rate},
                                  {"tokens_per_second_at_most", plan->tokens_per_second}}
               .dump()
        << "\n";
    out.close();
    if (!out) {
      return absl::UnavailableError(absl::StrCat("cannot write ", absl::GetFlag(FLAGS_json),
                                                 "; choose another file for --json"));
    }
  }
  absl::PrintF(
      "Hits of decayed LFU on %s.\nThe bound is of the experts alone, reads at %.1f GB/s "
      "wholly beside computing at %.1f GB/s.\n",
      absl::GetFlag(FLAGS_trace).empty() ? "generated routing" : absl::GetFlag(FLAGS_trace),
      absl::GetFlag(FLAGS_disk_gbps), absl::GetFlag(FLAGS_memory_gbps));
  return absl::OkStatus();
}

}  // namespace

int RunOffloadPlan(const std::string& path) {
  const absl::Status status = PlanAll(path);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "%s\n", status.ToString());
  return 1;
}

}  // namespace stoker::command
