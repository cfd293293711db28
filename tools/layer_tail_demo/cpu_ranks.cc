// The demonstration on CPU ranks, one process each.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "moe/fused_cpu.h"
#include "testing/cpu_world.h"
#include "testing/unique_name.h"
#include "tools/layer_tail_demo/demo.h"

namespace stoker::demo {
namespace {

constexpr int kLaunches = 5;

// FNV-1a (64 bits) over both outputs.
uint64_t Digest(const moe::NormResult& result) {
  uint64_t hash = 14695981039346656037ull;
  for (const moe::Rows* rows : {&result.residual_out, &result.norm_out}) {
    for (uint16_t element : *rows) hash = (hash ^ element) * 1099511628211ull;
  }
  return hash;
}

absl::Status RunTokens(comm::CpuCommunicator& communicator, comm::RankExchange& exchange,
                       int tokens) {
  const int rank = communicator.plan().rank;
  const testing::InputOptions options = DemoInputs(tokens);
  if (rank == 0) Progress(absl::StrCat("T = ", tokens, ": making inputs and launching"));
  const testing::Inputs mine = testing::MakeInputs(options, rank);
  Result result;
  result.tokens = tokens;
  const int64_t elements = static_cast<int64_t>(tokens) * kHidden;
  result.outputs.residual_out.assign(elements, 0xABAB);
  result.outputs.norm_out.assign(elements, 0xABAB);
  moe::NormArguments norm = mine.norm;
  norm.residual_out = result.outputs.residual_out.data();
  norm.norm_out = result.outputs.norm_out.data();
  std::vector<double> times;
  for (int launch = 0; launch < kLaunches; ++launch) {
    STOKER_RETURN_IF_ERROR(exchange.Barrier("starting together", absl::Seconds(60)));
    const absl::Time start = absl::Now();
    STOKER_RETURN_IF_ERROR(
        moe::MoeFinalizeAllReduceRmsNorm(communicator, options.shape, mine.finalize, norm, {}));
    times.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
  }
  std::sort(times.begin(), times.end());
  result.us_per_launch = times[kLaunches / 2];
  result.launch = "one thread a rank";
  STOKER_ASSIGN_OR_RETURN(
      const std::vector<std::string> digests,
      exchange.AllGather("comparing", absl::StrCat(Digest(result.outputs)), absl::Seconds(60)));
  result.ranks_equal = std::count(digests.begin(), digests.end(), digests[0]) == kWorld;
  return rank == 0 ? CheckAndPrint(result) : absl::OkStatus();
}

}  // namespace

absl::Status RunOnCpuRanks() {
  absl::PrintF(
      "World: CPU ranks, %d processes on this machine (no GPU was found). Times are those of a "
      "demonstration world, not of the product.\n",
      kWorld);
  comm::GroupOptions group;
  group.name = testing::UniqueName("demo");
  group.capacity = kTokensMax;
  group.hidden_max = kHidden;
  return testing::AllReturnedOk(testing::RunCpuProcesses(
      kWorld, group, absl::Seconds(300),
      [](comm::CpuCommunicator& communicator, comm::RankExchange& exchange) -> absl::Status {
        if (communicator.plan().rank == 0) Progress(communicator.plan().ToString());
        for (int tokens : kTokens) {
          STOKER_RETURN_IF_ERROR(RunTokens(communicator, exchange, tokens));
        }
        return absl::OkStatus();
      }));
}

}  // namespace stoker::demo
