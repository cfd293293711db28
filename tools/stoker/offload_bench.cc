#include "tools/stoker/offload_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "offload/engine.h"
#include "offload/machine_limits.h"
#include "offload/trace/generator.h"
#include "testing/expert_checkpoint.h"
#include "testing/scratch.h"
#include "tools/offload_bench/paired.h"
#include "tools/offload_bench/run_trace.h"
#include "tools/offload_bench/throttled_files.h"
#include "tools/stoker/offload_options.h"

ABSL_FLAG(std::string, checkpoint, "", "folder of a checkpoint; random experts of --shape without");
ABSL_FLAG(std::string, shape, "qwen3-30b-a3b", "qwen3-30b-a3b: 128 experts, H 2048, I 768, k 8");
ABSL_FLAG(int, layers, 4, "layers of a checkpoint that is made (the model has 48)");
ABSL_FLAG(std::string, trace, "", "routing trace (CSV), decode records; generated without");
ABSL_FLAG(int, steps, 33, "tokens of the trace; the first call is not timed");
ABSL_FLAG(int, tokens_per_call, 1, "consecutive tokens that share a call");
ABSL_FLAG(uint64_t, cache_bytes, 0, "budget; 0: --cache_slots a layer");
ABSL_FLAG(int, cache_slots, 16, "slots a layer");
ABSL_FLAG(bool, prewarm, false, "fill the cache by popularity first");
ABSL_FLAG(int, threads, 0, "that compute; 0: one a CPU");
ABSL_FLAG(int, io_threads, 2, "lanes that read");
ABSL_FLAG(std::string, io, "auto", "auto, buffered or direct");
ABSL_FLAG(uint64_t, chunk_bytes, 512 << 10, "bytes of a read");
ABSL_FLAG(double, store_gbps, 0, "throttle the store to so many GB/s; 0: not at all");
ABSL_FLAG(std::vector<std::string>, schedulers, {"dynamic"},
          "of dynamic, index, ready-first, load-all; several are compared in pairs");
ABSL_FLAG(std::optional<int>, pairs, std::nullopt,
          "rounds of a comparison; 8 if not given (overhead: 20); one run alone without one");
ABSL_FLAG(std::string, json, "", "file to append a line a condition to");
ABSL_FLAG(std::string, perfetto, "", "file for a timeline of one more run");

namespace stoker::command {
namespace {

using offload::Engine;
using offload::EngineOptions;
using offload::Scheduler;
using tools::TraceRun;

constexpr std::pair<const char*, Scheduler> kSchedulers[] = {
    {"dynamic", Scheduler::kDynamic},
    {"index", Scheduler::kIndexOrder},
    {"ready-first", Scheduler::kReadyFirstOnce},
    {"load-all", Scheduler::kLoadAllThenCompute}};

struct Condition {
  std::string name;
  Scheduler scheduler = Scheduler::kDynamic;
  std::vector<double> seconds_per_token;
  TraceRun last;
};

// What all runs share.
struct Bench {
  const offload::ExpertKernel* kernel = nullptr;
  int pairs = 0;
  std::ofstream json;  // open if --json was given
  std::string folder;
  std::optional<testing::Scratch> made;
  offload::Trace trace;
  EngineOptions options;
  std::unique_ptr<tools::ThrottledFiles> throttled;
  tools::RunOptions run;
  tools::Rates rates;
  std::string hash;
};

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const Bench& bench, const EngineOptions& options,
                                                   const offload::ExpertKernel& kernel) {
  const offload::FileOpener opener =
      bench.throttled != nullptr ? bench.throttled->Opener() : offload::OpenPosixFile;
  STOKER_ASSIGN_OR_RETURN(auto checkpoint, offload::Checkpoint::Open(bench.folder, opener));
  return Engine::Create(std::move(checkpoint), kernel, options);
}

absl::StatusOr<TraceRun> RunOnce(Bench* bench, const EngineOptions& options, bool prewarm) {
  STOKER_ASSIGN_OR_RETURN(const auto engine, MakeEngine(*bench, options, *bench->kernel));
  if (prewarm) STOKER_RETURN_IF_ERROR(engine->Prewarm(bench->trace));
  STOKER_ASSIGN_OR_RETURN(TraceRun run, tools::RunTrace(*engine, bench->trace, bench->run));
  if (bench->hash.empty()) bench->hash = run.hash;
  if (run.hash != bench->hash) {
    return absl::InternalError(absl::StrCat("outputs differ: SHA-256 ", run.hash, " and ",
                                            bench->hash, "; this run is no data"));
  }
  return run;
}

absl::Status MakeCheckpoint(Bench* bench) {
  if (absl::GetFlag(FLAGS_shape) != "qwen3-30b-a3b") {
    return Invalid(
        absl::StrCat("--shape=", absl::GetFlag(FLAGS_shape), ": qwen3-30b-a3b is known"));
  }
  const int layers = absl::GetFlag(FLAGS_layers);
  STOKER_RETURN_IF_ERROR(InRange("layers", layers, 1, 48));
  const uint64_t bytes = uint64_t{128} * 2'654'208 * layers;
  std::error_code error;
  const auto temporary = std::filesystem::temp_directory_path(error);
  const auto space = std::filesystem::space(temporary, error);
  if (error || space.available < bytes + (1ull << 30)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        temporary.string(), " lacks room for a checkpoint of ", bytes, " bytes; lower --layers"));
  }
  STOKER_ASSIGN_OR_RETURN(testing::Scratch made, testing::Scratch::Folder("stoker_bench"));
  bench->made.emplace(std::move(made));
  bench->folder = bench->made->path();
  absl::FPrintF(stderr, "Making %d of 48 layers, %.1f GB ...\n", layers, bytes * 1e-9);
  return testing::WriteExpertCheckpoint(
      bench->folder,
      {.layers = layers, .experts = 128, .hidden = 2048, .intermediate = 768, .durable = true});
}

absl::Status ReadSchedulers(std::vector<Condition>* conditions) {
  for (const std::string& name : absl::GetFlag(FLAGS_schedulers)) {
    const auto* found = std::find_if(std::begin(kSchedulers), std::end(kSchedulers),
                                     [&](const auto& s) { return name == s.first; });
    if (found == std::end(kSchedulers)) {
      return Invalid(absl::StrCat("--schedulers=", name,
                                  ": dynamic, index, ready-first and load-all are known"));
    }
    conditions->push_back({name, found->second, {}, {}});
  }
  // What a difference means is known only beside that of a condition with itself.
  if (conditions->size() > 1) {
    conditions->push_back({(*conditions)[0].name + " (A/A)", (*conditions)[0].scheduler, {}, {}});
  }
  return absl::OkStatus();
}

// Before the work whose result they are to hold.
absl::Status OpenOutputs(Bench* bench) {
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) {
    bench->json.open(path, std::ios::app);
    if (!bench->json) return ErrnoStatus(errno, absl::StrCat("--json=", path));
  }
  if (const std::string path = absl::GetFlag(FLAGS_perfetto); !path.empty()) {
    if (!std::ofstream(path, std::ios::app)) {
      return ErrnoStatus(errno, absl::StrCat("--perfetto=", path));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadFlags(Bench* bench, std::vector<Condition>* conditions) {
  STOKER_ASSIGN_OR_RETURN(bench->kernel, ChosenKernel());
  STOKER_ASSIGN_OR_RETURN(bench->pairs, PairsFlag(8));
  STOKER_RETURN_IF_ERROR(InRange("tokens_per_call", absl::GetFlag(FLAGS_tokens_per_call), 1, 4096));
  STOKER_RETURN_IF_ERROR(InRange("steps", absl::GetFlag(FLAGS_steps), 2, 1 << 20));
  STOKER_RETURN_IF_ERROR(InRange("cache_slots", absl::GetFlag(FLAGS_cache_slots), 1, 1 << 16));
  STOKER_RETURN_IF_ERROR(ReadSchedulers(conditions));
  STOKER_RETURN_IF_ERROR(OpenOutputs(bench));
  bench->folder = absl::GetFlag(FLAGS_checkpoint);
  if (bench->folder.empty()) STOKER_RETURN_IF_ERROR(MakeCheckpoint(bench));
  STOKER_ASSIGN_OR_RETURN(const auto checkpoint, offload::Checkpoint::Open(bench->folder));
  const int layers = static_cast<int>(checkpoint->layers().size());
  if (const std::string path = absl::GetFlag(FLAGS_trace); !path.empty()) {
    STOKER_ASSIGN_OR_RETURN(const offload::Trace trace, offload::ReadTrace(path));
    bench->trace = offload::DecodeOnly(trace);
  } else {
    bench->trace = offload::GenerateTrace({.layers = layers,
                                           .experts = checkpoint->experts(),
                                           .top_k = std::min(8, checkpoint->experts()),
                                           .tokens = absl::GetFlag(FLAGS_steps)});
  }
  bench->run.tokens_max = absl::GetFlag(FLAGS_steps);
  bench->run.tokens_per_call = absl::GetFlag(FLAGS_tokens_per_call);
  EngineOptions& options = bench->options;
  const uint64_t slot = offload::SlotLayout(checkpoint->extents(0, 0)).slot_bytes;
  options.cache_bytes = absl::GetFlag(FLAGS_cache_bytes);
  if (options.cache_bytes == 0) {
    options.cache_bytes = (static_cast<uint64_t>(layers) * absl::GetFlag(FLAGS_cache_slots) +
                           offload::ExpertCache::kScratchSlots) *
                          slot;
  }
  options.compute_threads = absl::GetFlag(FLAGS_threads);
  options.io_threads = absl::GetFlag(FLAGS_io_threads);
  options.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  options.timeout = absl::Minutes(10);
  const std::string io = absl::GetFlag(FLAGS_io);
  if (io != "auto" && io != "buffered" && io != "direct") {
    return Invalid(absl::StrCat("--io=", io, ": auto, buffered and direct are known"));
  }
  options.io = io == "direct"     ? offload::IoMode::kDirect
               : io == "buffered" ? offload::IoMode::kBuffered
                                  : offload::IoMode::kAuto;
  if (const double gbps = absl::GetFlag(FLAGS_store_gbps); gbps > 0) {
    bench->throttled = std::make_unique<tools::ThrottledFiles>(gbps * 1e9);
  }
  return absl::OkStatus();
}

// Computes nothing, so that a call is as long as its reads.
class NoKernel : public offload::ExpertKernel {
 public:
  size_t PreparedBytes(int, int) const override { return 64; }
  void Prepare(const float*, int, int, char*) const override {}
  void Fc1(const offload::ExpertView&, const offload::PreparedTokens&, int, int, float*,
           size_t) const override {}
  void Fc2(const offload::ExpertView&, const offload::PreparedTokens&, int, int, float*,
           size_t) const override {}
};

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Demands for all experts, 32 a call, with the lanes of the benchmark.
absl::Status MeasureLanes(Bench* bench, const EngineOptions& options) {
  static const NoKernel no_kernel;
  STOKER_ASSIGN_OR_RETURN(const auto engine, MakeEngine(*bench, options, no_kernel));
  const offload::Checkpoint& checkpoint = engine->checkpoint();
  const std::vector<float> hidden(checkpoint.shape().hidden);
  std::vector<float> out(hidden.size());
  constexpr int kTopK = 32;
  const std::vector<float> weights(kTopK);
  const absl::Duration begin = Clock::Monotonic().Now();
  const double cpu_begin = CpuSeconds();
  for (int layer = 0; layer < static_cast<int>(checkpoint.layers().size()); ++layer) {
    for (int first = 0; first < checkpoint.experts(); first += kTopK) {
      std::vector<int32_t> ids(kTopK);
      std::iota(ids.begin(), ids.end(), first);
      STOKER_RETURN_IF_ERROR(engine->Run(
          {layer, 1, kTopK, hidden.data(), ids.data(), weights.data()}, absl::MakeSpan(out)));
    }
  }
  const double seconds = absl::ToDoubleSeconds(Clock::Monotonic().Now() - begin);
  const double bytes = static_cast<double>(engine->stats().bytes_read);
  bench->rates.io = bytes / seconds;
  bench->rates.io_cpu = bytes / std::max(CpuSeconds() - cpu_begin, 1e-6);
  return absl::OkStatus();
}

// The rates that bound every schedule: the lanes alone, and calls whose experts are all there.
absl::Status MeasureBounds(Bench* bench) {
  EngineOptions all = bench->options;
  STOKER_ASSIGN_OR_RETURN(const auto sizes, offload::Checkpoint::Open(bench->folder));
  const uint64_t slot = offload::SlotLayout(sizes->extents(0, 0)).slot_bytes;
  all.cache_bytes = (sizes->layers().size() * sizes->experts() + 2) * slot;
  if (all.cache_bytes > offload::ReadMachineLimits().memory_bytes / 2) {
    absl::PrintF("No bounds: all experts would take more than half of the memory.\n");
    return absl::OkStatus();
  }
  tools::Rates& rates = bench->rates;
  STOKER_RETURN_IF_ERROR(MeasureLanes(bench, all));
  // What the store gives is known; what its lanes take of the CPUs is not.
  if (const double gbps = absl::GetFlag(FLAGS_store_gbps); gbps > 0) rates.io = gbps * 1e9;
  STOKER_ASSIGN_OR_RETURN(const auto engine, MakeEngine(*bench, all, *bench->kernel));
  STOKER_RETURN_IF_ERROR(engine->Prewarm(bench->trace));
  STOKER_RETURN_IF_ERROR(tools::RunTrace(*engine, bench->trace, bench->run).status());
  STOKER_ASSIGN_OR_RETURN(const TraceRun hits, tools::RunTrace(*engine, bench->trace, bench->run));
  if (hits.misses > 0) return absl::InternalError("an all-hit run has misses");
  rates.compute = hits.bytes_computed / hits.seconds;
  rates.compute_cpu = hits.bytes_computed / hits.cpu_seconds;
  rates.cpus = offload::ReadMachineLimits().cpus;
  absl::PrintF(
      "Bounds: lanes alone %.2f GB/s (%.2f GB a CPU second), all-hit calls %.2f GB/s "
      "(%.2f GB a CPU second), %.1f tokens/s\n",
      rates.io * 1e-9, rates.io_cpu * 1e-9, rates.compute * 1e-9, rates.compute_cpu * 1e-9,
      hits.tokens_per_second());
  return absl::OkStatus();
}

absl::Status Report(Bench& bench, const Condition& condition, const Condition& first,
                    const char* lanes, int threads) {
  const TraceRun& run = condition.last;
  std::vector<double> sorted = condition.seconds_per_token;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  std::string difference = "-";
  nlohmann::json row = {
      {"bench", "offload"},
      {"condition", condition.name},
      {"runs", sorted.size()},
      {"chunk_bytes", bench.options.chunk_bytes},
      {"cache_slots", absl::GetFlag(FLAGS_cache_bytes) == 0 ? absl::GetFlag(FLAGS_cache_slots) : 0},
      {"tokens_per_second", 1 / median},
      {"hit_rate", run.hit_rate()},
      {"misses", run.misses},
      {"bytes_read", run.bytes_read},
      {"bytes_computed", run.bytes_computed},
      {"seconds", run.seconds},
      {"stall_seconds", run.stall_seconds},
      {"cpu_seconds", run.cpu_seconds},
      {"sha256", run.hash},
      {"layers", bench.trace.layers},
      {"tokens_per_call", bench.run.tokens_per_call},
      {"cache_bytes", bench.options.cache_bytes},
      {"threads", threads},
      {"lanes", lanes},
      {"io_threads", bench.options.io_threads},
      {"store_gbps", absl::GetFlag(FLAGS_store_gbps)},
      {"prewarm", absl::GetFlag(FLAGS_prewarm)},
      {"trace", absl::GetFlag(FLAGS_trace).empty()
                    ? "generated"
                    : std::filesystem::path(absl::GetFlag(FLAGS_trace)).filename().string()}};
  if (&condition != &first) {
    const tools::Interval i =
        tools::PairedDifference(condition.seconds_per_token, first.seconds_per_token);
    difference = absl::StrFormat("%+.2f%% [%+.2f, %+.2f]", i.mean, i.low, i.high);
    row["time_against_first_percent"] = {i.mean, i.low, i.high};
  }
  std::string bound = "-";
  if (bench.rates.compute > 0) {
    const double seconds = median * run.tokens;
    const double chunk = static_cast<double>(bench.options.chunk_bytes);
    const double over = seconds / run.Target(bench.rates, /*share_cpus=*/false, chunk);
    const double over_cpus = seconds / run.Target(bench.rates, /*share_cpus=*/true, chunk);
    bound = absl::StrFormat("%.3f, %.3f", over, over_cpus);
    row["time_over_bound"] = seconds / run.Bound(bench.rates, false);
    row["time_over_bound_with_cpus"] = seconds / run.Bound(bench.rates, true);
    row["time_over_target"] = over;
    row["time_over_target_with_cpus"] = over_cpus;
    row["bounds_gbs"] = {{"io", bench.rates.io * 1e-9},
                         {"compute", bench.rates.compute * 1e-9},
                         {"io_cpu", bench.rates.io_cpu * 1e-9},
                         {"compute_cpu", bench.rates.compute_cpu * 1e-9},
                         {"cpus", bench.rates.cpus}};
  }
  absl::PrintF("%-18s %9.2f %8.1f%% %9.2f %11.2f %9.3f %15s  %s\n", condition.name, 1 / median,
               100 * run.hit_rate(), run.bytes_read / run.seconds * 1e-9,
               run.bytes_computed / run.seconds * 1e-9, run.stall_seconds, bound, difference);
  if (bench.json.is_open() && !(bench.json << row.dump() << std::endl)) {
    return ErrnoStatus(errno, absl::StrCat("--json=", absl::GetFlag(FLAGS_json), ": writing"));
  }
  return absl::OkStatus();
}

absl::Status Run() {
  Bench bench;
  std::vector<Condition> conditions;
  STOKER_RETURN_IF_ERROR(ReadFlags(&bench, &conditions));
  STOKER_ASSIGN_OR_RETURN(const auto probe, MakeEngine(bench, bench.options, *bench.kernel));
  const std::string lanes = probe->lane_kind();
  const int threads = probe->options().compute_threads;
  absl::PrintF("%s, %d layers used; %d threads compute, %d %s lanes; cache %.2f GB, prewarm %s\n",
               absl::GetFlag(FLAGS_trace).empty() ? "generated routing" : "recorded routing",
               static_cast<int>(probe->checkpoint().layers().size()), threads,
               bench.options.io_threads, lanes, bench.options.cache_bytes * 1e-9,
               absl::GetFlag(FLAGS_prewarm) ? "on" : "off");
  STOKER_RETURN_IF_ERROR(MeasureBounds(&bench));
  const size_t count = conditions.size();
  const size_t rounds = count > 1 ? bench.pairs : 1;
  for (size_t round = 0; round < rounds; ++round) {
    // A Latin square, every other round backwards: no condition has a place of its own.
    for (size_t i = 0; i < count; ++i) {
      const size_t at = round % 2 == 0 ? i : count - 1 - i;
      Condition& condition = conditions[(at + round / 2) % count];
      const double before = static_cast<double>(round * count + i);
      bench.run.progress = [&](double share) {
        tools::DrawProgress(condition.name, (before + share) / (rounds * count));
      };
      EngineOptions options = bench.options;
      options.scheduler = condition.scheduler;
      STOKER_ASSIGN_OR_RETURN(condition.last,
                              RunOnce(&bench, options, absl::GetFlag(FLAGS_prewarm)));
      condition.seconds_per_token.push_back(condition.last.seconds / condition.last.tokens);
    }
  }
  absl::PrintF("%-18s %9s %9s %9s %11s %9s %15s  %s\n", "condition", "tokens/s", "hit rate",
               "GB/s disk", "GB/s memory", "stall s", "x target, CPUs",
               "time against the first, CI95");
  for (const Condition& condition : conditions) {
    STOKER_RETURN_IF_ERROR(Report(bench, condition, conditions[0], lanes.c_str(), threads));
  }
  absl::PrintF("SHA-256 of all outputs, the same in all %d runs: %s\n", rounds * count, bench.hash);
  if (const std::string path = absl::GetFlag(FLAGS_perfetto); !path.empty()) {
    offload::Timeline timeline;
    EngineOptions options = bench.options;
    options.timeline = &timeline;
    bench.run.progress = nullptr;
    STOKER_RETURN_IF_ERROR(RunOnce(&bench, options, absl::GetFlag(FLAGS_prewarm)).status());
    STOKER_RETURN_IF_ERROR(timeline.Write(path));
    absl::PrintF("Timeline of one more run: %s (open it in ui.perfetto.dev)\n", path);
  }
  return absl::OkStatus();
}

}  // namespace

int RunOffloadBench() {
  const absl::Status status = Run();
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "%s\n", status.ToString());
  return 1;
}

}  // namespace stoker::command
