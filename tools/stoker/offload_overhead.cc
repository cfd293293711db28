// `stoker offload overhead`: what the engine costs where nothing is read.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "offload/engine.h"
#include "testing/expert_checkpoint.h"
#include "testing/scratch.h"
#include "tools/offload_bench/paired.h"
#include "tools/offload_bench/plain_call.h"
#include "tools/stoker/offload_bench.h"
#include "tools/stoker/offload_options.h"

ABSL_DECLARE_FLAG(int, threads);
ABSL_DECLARE_FLAG(std::optional<int>, pairs);

namespace stoker::command {
namespace {

constexpr int kTopK = 8;

struct FreeAligned {
  void operator()(char* data) const { std::free(data); }
};

// All experts of a layer, in large pages where there are some, as the engine has them.
struct Loaded {
  std::unique_ptr<char, FreeAligned> memory;
  std::vector<offload::ExpertView> views;
};

absl::StatusOr<Loaded> LoadAll(const offload::Checkpoint& checkpoint) {
  constexpr size_t kLargePage = 2 << 20;
  const offload::SlotLayout layout(checkpoint.extents(0, 0));
  const size_t bytes =
      (checkpoint.experts() * layout.slot_bytes + kLargePage - 1) / kLargePage * kLargePage;
  Loaded loaded;
  loaded.memory.reset(static_cast<char*>(std::aligned_alloc(kLargePage, bytes)));
  if (loaded.memory == nullptr) return absl::ResourceExhaustedError("no memory for the experts");
  madvise(loaded.memory.get(), bytes, MADV_HUGEPAGE);
  for (int e = 0; e < checkpoint.experts(); ++e) {
    offload::ExpertView view{checkpoint.shape(), {}};
    for (int part = 0; part < offload::kParts; ++part) {
      const offload::Extent& extent = checkpoint.extents(0, e).parts[part];
      char* into = loaded.memory.get() + e * layout.slot_bytes + layout.Position(part, extent);
      STOKER_RETURN_IF_ERROR(offload::ReadFully(checkpoint.file(extent.file), extent.offset,
                                                absl::MakeSpan(into, extent.bytes)));
      view.parts[part] = into;
    }
    loaded.views.push_back(view);
  }
  return loaded;
}

// Time of the body by `clock`: what a thread computed alone is not disturbed by who else runs.
double Microseconds(clockid_t clock, const std::function<void()>& body) {
  timespec begin;
  timespec end;
  clock_gettime(clock, &begin);
  body();
  clock_gettime(clock, &end);
  return static_cast<double>(end.tv_sec - begin.tv_sec) * 1e6 +
         static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-3;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::StatusOr<std::unique_ptr<offload::Engine>> Resident(const std::string& folder,
                                                          const offload::ExpertKernel& kernel) {
  STOKER_ASSIGN_OR_RETURN(auto checkpoint, offload::Checkpoint::Open(folder));
  offload::EngineOptions options;
  options.compute_threads = absl::GetFlag(FLAGS_threads);
  options.cache_bytes = (checkpoint->experts() + offload::ExpertCache::kScratchSlots) *
                        offload::SlotLayout(checkpoint->extents(0, 0)).slot_bytes;
  return offload::Engine::Create(std::move(checkpoint), kernel, options);
}

// All-hit calls of one token in the order ABBA against the same tiles without readiness.
absl::Status AllHit(const std::string& folder, const offload::ExpertKernel& kernel, int pairs) {
  constexpr int kExperts = 64;
  STOKER_RETURN_IF_ERROR(testing::WriteExpertCheckpoint(
      folder, {.layers = 1, .experts = kExperts, .hidden = 2048, .intermediate = 768}));
  STOKER_ASSIGN_OR_RETURN(const auto engine, Resident(folder, kernel));
  STOKER_ASSIGN_OR_RETURN(const Loaded loaded, LoadAll(engine->checkpoint()));
  const int threads = engine->options().compute_threads;
  tools::PlainCall plain(kernel, engine->checkpoint().shape(), threads);
  const size_t hidden_size = engine->checkpoint().shape().hidden;
  std::mt19937 random(3);
  std::vector<float> hidden(hidden_size);
  for (float& value : hidden) value = static_cast<float>(random()) * 0x1p-31f - 1.0f;
  const std::vector<float> weights(kTopK, 0.125f);
  std::vector<float> of_engine(hidden_size);
  std::vector<float> of_plain(hidden_size);
  absl::Status status;
  // Every expert once a pass.
  const auto pass_of_engine = [&] {
    for (int first = 0; first < kExperts; first += kTopK) {
      std::array<int32_t, kTopK> ids;
      for (int k = 0; k < kTopK; ++k) ids[k] = first + k;
      const absl::Status run = engine->Run({0, 1, kTopK, hidden.data(), ids.data(), weights.data()},
                                           absl::MakeSpan(of_engine));
      if (!run.ok()) status = run;
    }
  };
  const auto pass_of_plain = [&] {
    for (int first = 0; first < kExperts; first += kTopK) {
      plain.Run(absl::MakeSpan(loaded.views).subspan(first, kTopK), hidden.data(), weights,
                of_plain.data());
    }
  };
  pass_of_engine();
  pass_of_plain();
  const int64_t misses = engine->stats().misses;
  std::vector<double> engine_us;
  std::vector<double> plain_us;
  constexpr int kPasses = 10;
  constexpr int kTokensAPass = kExperts / kTopK;
  const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  const auto measure = [&](bool first) {
    auto& times = first ? engine_us : plain_us;
    times.push_back(Microseconds(clock,
                                 [&] {
                                   for (int pass = 0; pass < kPasses; ++pass) {
                                     first ? pass_of_engine() : pass_of_plain();
                                   }
                                 }) /
                    (kPasses * kTokensAPass));
  };
  for (int pair = 0; pair < pairs; ++pair) {
    measure(pair % 2 == 0);
    measure(pair % 2 != 0);
  }
  STOKER_RETURN_IF_ERROR(status);
  if (engine->stats().misses != misses) return absl::InternalError("a call was not all hits");
  if (of_engine != of_plain) return absl::InternalError("the outputs differ; this is no data");
  const tools::Interval i = tools::PairedDifference(engine_us, plain_us);
  absl::PrintF(
      "all-hit call, 8 experts, %d threads, %s: engine %.1f us, without readiness %.1f us, "
      "difference %+.2f%% [%+.2f, %+.2f] over %d pairs; the same bits\n",
      threads, threads == 1 ? "CPU time" : "wall time", Median(engine_us), Median(plain_us), i.mean,
      i.low, i.high, pairs);
  return absl::OkStatus();
}

// Calls whose work is next to nothing.
absl::Status Empty(const std::string& folder, const offload::ExpertKernel& kernel) {
  STOKER_RETURN_IF_ERROR(testing::WriteExpertCheckpoint(
      folder, {.layers = 1, .experts = 4, .hidden = 64, .intermediate = 32}));
  STOKER_ASSIGN_OR_RETURN(const auto engine, Resident(folder, kernel));
  const std::vector<float> hidden(64, 0.5f);
  std::vector<float> out(64);
  const float weight = 1.0f;
  for (const int32_t id : {-1, 0}) {
    std::vector<double> times;
    for (int call = 0; call < 20000; ++call) {
      absl::Status status;
      times.push_back(Microseconds(CLOCK_MONOTONIC, [&] {
        status = engine->Run({0, 1, 1, hidden.data(), &id, &weight}, absl::MakeSpan(out));
      }));
      STOKER_RETURN_IF_ERROR(status);
    }
    std::sort(times.begin(), times.end());
    absl::PrintF("%s: median %.2f us, 99th percentile %.2f us\n",
                 id < 0 ? "call without experts" : "call of one expert of 64 x 32 (two tiles)",
                 Median(times), times[times.size() * 99 / 100]);
  }
  return absl::OkStatus();
}

absl::Status Run() {
  STOKER_ASSIGN_OR_RETURN(const int pairs, PairsFlag(20));
  STOKER_ASSIGN_OR_RETURN(const offload::ExpertKernel* kernel, ChosenKernel());
  STOKER_ASSIGN_OR_RETURN(const testing::Scratch folder, testing::Scratch::Folder("stoker_over"));
  STOKER_RETURN_IF_ERROR(AllHit(folder.path(), *kernel, pairs));
  return Empty(folder.path(), *kernel);
}

}  // namespace

int RunOffloadOverhead() {
  const absl::Status status = Run();
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "%s\n", status.ToString());
  return 1;
}

}  // namespace stoker::command
