// The demonstration of experts that do not fit: makes a checkpoint of 2 layers, streams it through
// caches of a quarter, a half and all of it, and compares the bits.
//
//   offload_demo [--trace FILE]
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "offload/cpu_expert_kernel.h"
#include "offload/engine.h"
#include "offload/trace/generator.h"
#include "testing/expert_checkpoint.h"
#include "testing/scratch.h"
#include "tools/offload_bench/run_trace.h"

ABSL_FLAG(std::string, trace, "", "a recorded routing trace (CSV); generated without one");

namespace stoker::tools {
namespace {

constexpr int kLayers = 2;
constexpr int kHidden = 2048;
constexpr int kIntermediate = 768;
constexpr int kTokens = 96;
constexpr int kShares[] = {25, 50, 100};

absl::StatusOr<TraceRun> RunShare(const std::string& checkpoint_folder, const offload::Trace& trace,
                                  int share, std::string* reads) {
  static const offload::CpuExpertKernel kernel(
      offload::cpu::PickKernel(offload::cpu::DetectCpuFeatures()));
  STOKER_ASSIGN_OR_RETURN(auto checkpoint, offload::Checkpoint::Open(checkpoint_folder));
  offload::EngineOptions options;
  options.io = offload::IoMode::kDirect;  // else the page cache would be the disk
  const uint64_t slot = offload::SlotLayout(checkpoint->extents(0, 0)).slot_bytes;
  const uint64_t slots = static_cast<uint64_t>(kLayers) * checkpoint->experts() * share / 100;
  options.cache_bytes = (slots + offload::ExpertCache::kScratchSlots) * slot;
  STOKER_ASSIGN_OR_RETURN(auto engine,
                          offload::Engine::Create(std::move(checkpoint), kernel, options));
  *reads = engine->lane_kind();
  RunOptions run;
  run.tokens_max = kTokens;
  run.progress = [share](double done) { DrawProgress(absl::StrCat("cache ", share, "%"), done); };
  return RunTrace(*engine, trace, run);
}

absl::Status Demo() {
  offload::Trace trace;
  int experts = 64;
  if (const std::string path = absl::GetFlag(FLAGS_trace); !path.empty()) {
    STOKER_ASSIGN_OR_RETURN(trace, offload::ReadTrace(path));
    trace = offload::DecodeOnly(trace);
    experts = std::max(experts, trace.experts);
  } else {
    trace = offload::GenerateTrace(
        {.layers = kLayers, .experts = experts, .top_k = 8, .tokens = kTokens});
  }
  STOKER_ASSIGN_OR_RETURN(const testing::Scratch folder,
                          testing::Scratch::Folder("stoker_offload"));
  absl::PrintF("Stoker: experts that do not fit, on the CPU, from a checkpoint on disk\n");
  absl::PrintF("Making a checkpoint: %d layers x %d experts, H %d, I %d, INT4, groups of 32 ...\n",
               kLayers, experts, kHidden, kIntermediate);
  std::fflush(stdout);
  STOKER_RETURN_IF_ERROR(
      testing::WriteExpertCheckpoint(folder.path(), {.layers = kLayers,
                                                     .experts = experts,
                                                     .hidden = kHidden,
                                                     .intermediate = kIntermediate,
                                                     .durable = true}));
  absl::PrintF("Routing: %s, %d tokens, top-k %d. The first token is not timed.\n",
               absl::GetFlag(FLAGS_trace).empty() ? "generated" : absl::GetFlag(FLAGS_trace),
               kTokens, trace.groups.front().routes.size());
  absl::PrintF("%-6s %9s %9s %10s %12s %8s %6s %7s %10s  %s\n", "cache", "tokens/s", "hit rate",
               "GB/s disk", "GB/s memory", "stall s", "hits", "misses", "evictions", "SHA-256");
  std::vector<std::string> hashes;
  std::string reads;
  for (const int share : kShares) {
    STOKER_ASSIGN_OR_RETURN(const TraceRun run, RunShare(folder.path(), trace, share, &reads));
    absl::PrintF("%4d%%  %9.1f %8.1f%% %10.2f %12.2f %8.3f %6d %7d %10d  %s\n", share,
                 run.tokens_per_second(), 100 * run.hit_rate(), run.bytes_read / run.seconds * 1e-9,
                 run.bytes_computed / run.seconds * 1e-9, run.stall_seconds, run.hits, run.misses,
                 run.evictions, run.hash.substr(0, 16));
    std::fflush(stdout);
    if (share == 25 && (run.hits == 0 || run.misses == 0 || run.evictions == 0)) {
      return absl::InternalError("hits, misses and evictions should all have occurred at 25%");
    }
    hashes.push_back(run.hash);
  }
  const bool same = hashes[0] == hashes[1] && hashes[1] == hashes[2];
  absl::PrintF("Reads by %s. Tokens/s are those of the experts alone, on this machine.\n", reads);
  absl::PrintF("output identical with cache 25%% / 50%% / 100%%: %s\n", same ? "yes" : "NO");
  return same ? absl::OkStatus() : absl::InternalError("the outputs differ");
}

}  // namespace
}  // namespace stoker::tools

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = stoker::tools::Demo();
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "FAILED: %s\n", status.ToString());
  return 1;
}
