#include "tools/stoker/bench_finalize_flags.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "testing/stream_world.h"
#include "tools/bench/cell_process.h"
#include "tools/bench/finalize_cpu.h"
#include "tools/bench/guards.h"

ABSL_FLAG(std::vector<std::string>, world, {"4"}, "ranks; a list");
ABSL_FLAG(std::vector<std::string>, hidden, {"7168"}, "hidden sizes; a list");
ABSL_FLAG(std::vector<std::string>, tokens,
          (std::vector<std::string>{"1", "4", "16", "32", "64", "128"}), "tokens; a list");
ABSL_FLAG(int, top_k, 8, "routes per token");
ABSL_FLAG(std::string, dtype, "bf16", "bf16 or fp16");
ABSL_FLAG(std::string, out, "", "file to append JSON lines to");
ABSL_FLAG(bool, resume, false, "leave out the cells that --out holds already");
ABSL_FLAG(std::vector<std::string>, against, {},
          "contenders beside Stoker: of flashinfer, pr6631, unfused, reduction, hand-written, "
          "unguarded, packets; all if empty");
ABSL_FLAG(
    std::string, placement, "streams",
    "streams: all ranks on one GPU; loopback: one rank with the GPU for itself, fed by a kernel");
ABSL_FLAG(std::string, commit, "", "commit to name in the rows");
ABSL_FLAG(bool, programmatic, true, "launch with programmatic stream serialization");
ABSL_FLAG(bool, early_trigger, false, "let the next launch start early");
ABSL_FLAG(std::vector<std::string>, shapes, {},
          "launch shapes to measure beside the policy's, each CLUSTERSxCLUSTERxTHREADSxVECTORS");

namespace stoker::command {
namespace {

absl::StatusOr<std::vector<int>> Numbers(const char* flag, const std::vector<std::string>& texts,
                                         int least, int most) {
  std::vector<int> numbers;
  if (texts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=: whole numbers from ", least, " to ", most));
  }
  for (const std::string& text : texts) {
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < least || number > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, "=", text, ": whole numbers from ", least, " to ", most));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::Status CheckAgainst(const std::vector<std::string>& names,
                          const std::vector<bench::Peer>& peers) {
  for (const std::string& name : names) {
    if (name == "unfused" || name == "reduction" || name == "hand-written" || name == "unguarded")
      continue;
    const bool known = std::any_of(peers.begin(), peers.end(), [&](const bench::Peer& peer) {
      return absl::StartsWith(peer.name, name);
    });
    if (known && !name.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--against=", name,
        ": of flashinfer, pr6631, unfused, reduction, hand-written, unguarded, packets; ",
        "flashinfer only in //tools/bench:finalize_with_peers, which its headers are compiled "
        "into"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bench::FinalizeBenchOptions> OptionsOf(const std::vector<bench::Peer>& peers) {
  bench::FinalizeBenchOptions options;
  options.contenders.against = absl::GetFlag(FLAGS_against);
  STOKER_RETURN_IF_ERROR(CheckAgainst(options.contenders.against, peers));
  STOKER_ASSIGN_OR_RETURN(options.worlds,
                          Numbers("world", absl::GetFlag(FLAGS_world), 1, comm::kWorldMax));
  STOKER_ASSIGN_OR_RETURN(options.hidden,
                          Numbers("hidden", absl::GetFlag(FLAGS_hidden), 8, comm::kHiddenMax));
  for (const int hidden : options.hidden) {
    if (hidden % 8 != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--hidden=", hidden, ": multiples of 8 (rows move 16 bytes at a time)"));
    }
  }
  STOKER_ASSIGN_OR_RETURN(options.tokens, Numbers("tokens", absl::GetFlag(FLAGS_tokens), 1, 4096));
  options.top_k = absl::GetFlag(FLAGS_top_k);
  if (options.top_k < 1 || options.top_k > comm::kTopKMax) {
    return absl::InvalidArgumentError(absl::StrCat("--top_k=", options.top_k, ": 1 to 32"));
  }
  const std::string dtype = absl::GetFlag(FLAGS_dtype);
  if (dtype != "bf16" && dtype != "fp16") {
    return absl::InvalidArgumentError(absl::StrCat("--dtype=", dtype, ": bf16 or fp16"));
  }
  options.type = dtype == "bf16" ? comm::WireType::kBf16 : comm::WireType::kFp16;
  options.contenders.programmatic = absl::GetFlag(FLAGS_programmatic);
  options.contenders.early_trigger = absl::GetFlag(FLAGS_early_trigger);
  const std::string placement = absl::GetFlag(FLAGS_placement);
  if (placement != "streams" && placement != "loopback") {
    return absl::InvalidArgumentError(
        absl::StrCat("--placement=", placement, ": streams or loopback"));
  }
  options.loopback = placement == "loopback";
  options.out = absl::GetFlag(FLAGS_out);
  options.resume = absl::GetFlag(FLAGS_resume);
  options.commit = absl::GetFlag(FLAGS_commit);
  options.run = absl::FormatTime("%Y%m%dT%H%M%S", absl::Now(), absl::UTCTimeZone());
  for (const std::string& text : absl::GetFlag(FLAGS_shapes)) {
    STOKER_ASSIGN_OR_RETURN(const std::vector<int> parts,
                            Numbers("shapes", absl::StrSplit(text, 'x'), 1, 1 << 20));
    if (parts.size() != 4) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shapes=", text,
                       ": four numbers, CLUSTERSxCLUSTERxTHREADSxVECTORS, such as 8x7x128x1"));
    }
    options.contenders.shapes.push_back(
        {.cluster = parts[1], .threads = parts[2], .vectors = parts[3], .clusters = parts[0]});
  }
  return options;
}

absl::Status Run(const std::vector<bench::Peer>& peers) {
  STOKER_ASSIGN_OR_RETURN(const bench::FinalizeBenchOptions options, OptionsOf(peers));
  if (!bench::AskInChild(testing::HasGpu)) {
    if (!options.contenders.shapes.empty()) {
      return absl::InvalidArgumentError(
          "--shapes needs a GPU, and none was found: CPU ranks have no launch shape");
    }
    absl::PrintF("no GPU: CPU ranks, threads of this process; no peers\n");
    return bench::BenchFinalizeOnCpu(options);
  }
  return bench::BenchFinalize(options, peers);
}

absl::Status RunGuards() {
  STOKER_ASSIGN_OR_RETURN(const bench::FinalizeBenchOptions options, OptionsOf({}));
  if (!bench::AskInChild(testing::HasGpu)) {
    return absl::UnavailableError("no GPU: only on one do the guards have a cost of their own");
  }
  return bench::BenchGuards(options);
}

int ExitStatus(const absl::Status& status) {
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "%s\n", status.ToString());
  return 1;
}

}  // namespace

int RunBenchFinalize(std::vector<bench::Peer> peers) {
  peers.push_back(bench::Pr6631Peer());
  peers.push_back(bench::PacketsPeer(bench::PacketKind::kSentinel));
  peers.push_back(bench::PacketsPeer(bench::PacketKind::kTagged));
  return ExitStatus(Run(peers));
}

int RunBenchGuards() { return ExitStatus(RunGuards()); }

}  // namespace stoker::command
