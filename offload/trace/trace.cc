#include "offload/trace/trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "offload/io/file.h"

namespace stoker::offload {
namespace {

constexpr uint64_t kMaxBytes = 1ull << 30;
constexpr int kMaxLayers = 4096;
constexpr int kMaxExperts = 65536;
constexpr size_t kMaxRoutes = 32;

// The number after `key` in a comment, or 0.
int Declared(absl::string_view line, absl::string_view key) {
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    int value = 0;
    if (absl::StartsWith(word, key) && absl::SimpleAtoi(word.substr(key.size()), &value)) {
      return value;
    }
  }
  return 0;
}

struct Line {
  int turn, phase, layer, slot, expert;
  int64_t step;
  float weight;
};

bool ParseLine(absl::string_view text, Line* line) {
  const std::vector<absl::string_view> f = absl::StrSplit(text, ',');
  return f.size() >= 7 && absl::SimpleAtoi(f[0], &line->turn) &&
         absl::SimpleAtoi(f[1], &line->phase) && absl::SimpleAtoi(f[2], &line->step) &&
         absl::SimpleAtoi(f[3], &line->layer) && absl::SimpleAtoi(f[4], &line->slot) &&
         absl::SimpleAtoi(f[5], &line->expert) && absl::SimpleAtof(f[6], &line->weight) &&
         (line->phase == 0 || line->phase == 1) && line->layer >= 0 && line->layer < kMaxLayers &&
         line->expert >= 0 && line->expert < kMaxExperts && line->slot >= 0 &&
         line->slot < static_cast<int>(kMaxRoutes);
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(const std::string& text, const std::string& name) {
  Trace trace;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view row = absl::StripSuffix(raw, "\r");
    if (row.empty() || absl::StartsWith(row, "turn,")) continue;
    if (row[0] == '#') {
      trace.layers = std::max(trace.layers, Declared(row, "n_layer="));
      trace.experts = std::max(trace.experts, Declared(row, "n_expert="));
      if (trace.layers <= kMaxLayers && trace.experts <= kMaxExperts) continue;
      return absl::InvalidArgumentError(absl::StrCat(name, ":", number, ": more than ", kMaxLayers,
                                                     " layers or ", kMaxExperts, " experts"));
    }
    Line line;
    if (!ParseLine(row, &line)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", number,
                       ": is not turn,phase,step,layer,slot,expert,weight within the limits: ",
                       row.substr(0, 80)));
    }
    if (line.slot == 0) {
      trace.groups.push_back({line.phase == 1, line.turn, line.step, line.layer, {}});
    }
    if (trace.groups.empty() || trace.groups.back().layer != line.layer ||
        trace.groups.back().step != line.step ||
        trace.groups.back().routes.size() != static_cast<size_t>(line.slot)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", number, ": slot ", line.slot,
                       " does not follow the slot before it of the same token and layer"));
    }
    trace.groups.back().routes.push_back({line.expert, line.weight});
    trace.layers = std::max(trace.layers, line.layer + 1);
    trace.experts = std::max(trace.experts, line.expert + 1);
  }
  if (trace.groups.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has no routes"));
  }
  return trace;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  STOKER_ASSIGN_OR_RETURN(const auto file, OpenPosixFile(path));
  STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, file->Identity());
  if (identity.size > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has more than 1 GiB"));
  }
  std::string text(identity.size, '\0');
  STOKER_RETURN_IF_ERROR(ReadFully(*file, 0, absl::MakeSpan(text)));
  return ParseTrace(text, path);
}

absl::Status WriteTrace(const Trace& trace, const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"),
                                                             std::fclose);
  if (file == nullptr) return ErrnoStatus(errno, path);
  std::fprintf(file.get(), "# route_trace v1\n# n_layer=%d n_expert=%d\n", trace.layers,
               trace.experts);
  std::fprintf(file.get(), "turn,phase,step,layer,slot,expert,weight\n");
  for (const RouteGroup& group : trace.groups) {
    for (size_t slot = 0; slot < group.routes.size(); ++slot) {
      std::fprintf(file.get(), "%d,%d,%lld,%d,%zu,%d,%.9g\n", group.turn, group.decode ? 1 : 0,
                   static_cast<long long>(group.step), group.layer, slot, group.routes[slot].expert,
                   static_cast<double>(group.routes[slot].weight));
    }
  }
  if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0) {
    return ErrnoStatus(errno, path);
  }
  return absl::OkStatus();
}

Trace DecodeOnly(const Trace& trace) {
  Trace decode{trace.layers, trace.experts, {}};
  std::copy_if(trace.groups.begin(), trace.groups.end(), std::back_inserter(decode.groups),
               [](const RouteGroup& group) { return group.decode; });
  return decode;
}

}  // namespace stoker::offload
