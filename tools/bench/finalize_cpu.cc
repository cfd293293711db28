#include "tools/bench/finalize_cpu.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "moe/fused_cpu.h"
#include "moe/oracle.h"
#include "testing/cpu_world.h"
#include "testing/inputs.h"
#include "tools/bench/finalize_rows.h"
#include "tools/bench/measure.h"

namespace stoker::bench {
namespace {

const char* const kNames[] = {"stoker", "stoker again"};

struct RankResult {
  moe::NormResult outputs;
  std::vector<double> times_us[2];  // of "stoker" and "stoker again", a replay each
};

// What one rank does: a launch for the check, then replays of both contenders in turns.
absl::Status RunRank(const FinalizeBenchOptions& options, const Cell& cell,
                     const testing::Inputs& inputs, comm::CpuCommunicator& communicator,
                     RankResult& result) {
  const size_t elements = static_cast<size_t>(cell.shape.tokens) * cell.shape.hidden;
  result.outputs.residual_out.assign(elements, 0xABAB);
  result.outputs.norm_out.assign(elements, 0xABAB);
  moe::NormArguments norm = inputs.norm;
  norm.residual_out = result.outputs.residual_out.data();
  norm.norm_out = result.outputs.norm_out.data();
  const auto launch = [&] {
    return moe::MoeFinalizeAllReduceRmsNorm(communicator, cell.shape, inputs.finalize, norm, {});
  };
  STOKER_RETURN_IF_ERROR(launch());
  for (int replay = 0; replay < options.rounds; ++replay) {
    for (int turn = 0; turn < 2; ++turn) {
      const int contender = replay % 2 == 0 ? turn : 1 - turn;
      const absl::Time start = absl::Now();
      for (int i = 0; i < options.launches; ++i) STOKER_RETURN_IF_ERROR(launch());
      result.times_us[contender].push_back(absl::ToDoubleMicroseconds(absl::Now() - start) /
                                           options.launches);
    }
  }
  return absl::OkStatus();
}

absl::Status RunCell(const FinalizeBenchOptions& options, const Cell& cell, RowWriter& rows) {
  testing::InputOptions input;
  input.shape = cell.shape;
  input.top_k = options.top_k;
  const std::vector<testing::Inputs> inputs = testing::MakeAllInputs(input, cell.world);
  std::vector<moe::FinalizeArguments> arguments;
  for (const testing::Inputs& rank : inputs) arguments.push_back(rank.finalize);
  const moe::OracleResult exact = moe::OracleFinalize(cell.shape, arguments, inputs[0].norm);

  comm::GroupOptions group;
  group.name = testing::UniqueGroupName();
  group.capacity = cell.shape.tokens;
  group.hidden_max = cell.shape.hidden;
  std::vector<RankResult> results(cell.world);
  const std::vector<absl::Status> statuses = testing::RunCpuThreads(
      cell.world, group, [&](comm::CpuCommunicator& communicator, comm::RankExchange& exchange) {
        return RunRank(options, cell, inputs[exchange.rank()], communicator,
                       results[exchange.rank()]);
      });
  for (const absl::Status& status : statuses) STOKER_RETURN_IF_ERROR(status);
  for (const RankResult& rank : results) {
    if (rank.outputs.residual_out != results[0].outputs.residual_out ||
        rank.outputs.norm_out != results[0].outputs.norm_out) {
      return absl::InternalError("ranks have different bits");
    }
  }
  const RowErrors errors = ErrorsOf(cell, exact, results[0].outputs);
  for (int contender = 0; contender < 2; ++contender) {
    Contender row;
    row.name = kNames[contender];
    row.launch_shape = "one thread a rank";
    row.bytes = LeastBytes(Way::kOneShot, cell.world, cell.shape, options.top_k);
    rows.Write(cell, options, row, Summarize(results[0].times_us[contender]), errors, CellBound{});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchFinalizeOnCpu(const FinalizeBenchOptions& options) {
  if (options.loopback) return absl::UnavailableError("loopback needs a GPU");
  std::set<std::string> done;
  if (options.resume) {
    STOKER_ASSIGN_OR_RETURN(done, FinishedCells(options.out));
  }
  STOKER_ASSIGN_OR_RETURN(
      RowWriter rows,
      RowWriter::Open(options.out, {"cpu", "none", "none", options.run, options.commit}));
  for (int world : options.worlds) {
    for (int hidden : options.hidden) {
      for (int tokens : options.tokens) {
        const Cell cell{world, {tokens, hidden, options.type}};
        if (done.count(CellKey("cpu", cell)) > 0) continue;
        STOKER_RETURN_IF_ERROR(RunCell(options, cell, rows));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace stoker::bench
