#include "tools/offload_bench/run_trace.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "tools/offload_bench/sha256.h"

namespace stoker::tools {
namespace {

// Routes of a token by layer; empty where the trace has none.
using TokenRoutes = std::vector<const offload::RouteGroup*>;

std::vector<TokenRoutes> TokensOf(const offload::Trace& trace, int layers) {
  std::vector<TokenRoutes> tokens;
  std::map<std::pair<int, int64_t>, size_t> index;
  for (const offload::RouteGroup& group : trace.groups) {
    if (group.layer >= layers) continue;
    const auto [at, added] = index.emplace(std::make_pair(group.turn, group.step), tokens.size());
    if (added) tokens.emplace_back(layers, nullptr);
    tokens[at->second][group.layer] = &group;
  }
  return tokens;
}

struct CallInput {
  int tokens = 0;
  int top_k = 1;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

CallInput MakeInput(const std::vector<TokenRoutes>& tokens, size_t first, size_t count, int layer) {
  CallInput input;
  input.tokens = static_cast<int>(count);
  for (size_t t = first; t < first + count; ++t) {
    if (tokens[t][layer] == nullptr) continue;
    input.top_k = std::max(input.top_k, static_cast<int>(tokens[t][layer]->routes.size()));
  }
  for (size_t t = first; t < first + count; ++t) {
    for (int k = 0; k < input.top_k; ++k) {
      const offload::RouteGroup* group = tokens[t][layer];
      const bool there = group != nullptr && k < static_cast<int>(group->routes.size());
      input.ids.push_back(there ? group->routes[k].expert : -1);
      input.weights.push_back(there ? group->routes[k].weight : 0.0f);
    }
  }
  return input;
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

double TraceRun::Bound(const Rates& rates, bool share_cpus) const {
  double sum = 0;
  for (const auto& [read, computed] : call_bytes) {
    double least = std::max(read / rates.io, computed / rates.compute);
    if (share_cpus) {
      least = std::max(least, (read / rates.io_cpu + computed / rates.compute_cpu) / rates.cpus);
    }
    sum += least;
  }
  return sum;
}

double TraceRun::Target(const Rates& rates, bool share_cpus, double chunk_bytes) const {
  const auto with_misses = std::count_if(call_bytes.begin(), call_bytes.end(),
                                         [](const auto& call) { return call.first > 0; });
  return 1.05 * Bound(rates, share_cpus) + with_misses * chunk_bytes / rates.io;
}

absl::StatusOr<TraceRun> RunTrace(offload::Engine& engine, const offload::Trace& trace,
                                  const RunOptions& options) {
  const offload::Checkpoint& checkpoint = engine.checkpoint();
  if (trace.experts > checkpoint.experts()) {
    return absl::InvalidArgumentError(absl::StrCat("the trace has ", trace.experts,
                                                   " experts a layer, the checkpoint ",
                                                   checkpoint.experts()));
  }
  const int layers = std::min<int>(trace.layers, static_cast<int>(checkpoint.layers().size()));
  std::vector<TokenRoutes> tokens = TokensOf(trace, layers);
  if (static_cast<int>(tokens.size()) > options.tokens_max) tokens.resize(options.tokens_max);
  const size_t hidden = checkpoint.shape().hidden;
  const size_t per_call = options.tokens_per_call;
  std::mt19937 random(11);
  std::vector<float> activations(per_call * hidden);
  std::vector<float> out(per_call * hidden);
  TraceRun run;
  Sha256 hash;
  offload::EngineStats before = engine.stats();
  double cpu = 0;
  for (size_t first = 0; first + per_call <= tokens.size(); first += per_call) {
    for (int layer = 0; layer < layers; ++layer) {
      for (float& value : activations) {
        value = static_cast<float>(random()) * 0x1p-31f - 1.0f;
      }
      const CallInput input = MakeInput(tokens, first, per_call, layer);
      const double cpu_before = CpuSeconds();
      const absl::Duration begin = Clock::Monotonic().Now();
      STOKER_RETURN_IF_ERROR(engine.Run({layer, input.tokens, input.top_k, activations.data(),
                                         input.ids.data(), input.weights.data(), 1.0f},
                                        absl::MakeSpan(out)));
      const double seconds = absl::ToDoubleSeconds(Clock::Monotonic().Now() - begin);
      hash.Add(out.data(), out.size() * sizeof(float));
      const offload::EngineStats after = engine.stats();
      if (first > 0) {
        ++run.calls;
        run.seconds += seconds;
        cpu += CpuSeconds() - cpu_before;
        run.stall_seconds += absl::ToDoubleSeconds(after.stall - before.stall);
        run.hits += after.hits - before.hits;
        run.misses += after.misses - before.misses;
        run.evictions += after.evictions - before.evictions;
        run.bytes_read += after.bytes_read - before.bytes_read;
        run.bytes_computed += after.bytes_computed - before.bytes_computed;
        run.call_bytes.emplace_back(after.bytes_read - before.bytes_read,
                                    after.bytes_computed - before.bytes_computed);
      }
      before = after;
    }
    if (first > 0) run.tokens += static_cast<int64_t>(per_call);
    if (options.progress) options.progress(static_cast<double>(first + per_call) / tokens.size());
  }
  if (run.tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the trace has ", tokens.size(),
                                                   " tokens; more than ", per_call,
                                                   " are needed (the first call is not timed)"));
  }
  run.cpu_seconds = cpu;
  run.hash = hash.Hex();
  return run;
}

void DrawProgress(const std::string& what, double share) {
  static const bool terminal = isatty(2) != 0;
  if (!terminal) return;
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(share * kWidth);
  std::fprintf(stderr, "\r%-40s [%s%s] %3.0f%%%s", what.c_str(), std::string(filled, '#').c_str(),
               std::string(kWidth - filled, ' ').c_str(), share * 100, share >= 1 ? "\n" : "");
}

}  // namespace stoker::tools
