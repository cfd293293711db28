#include "tools/bench/finalize.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "moe/oracle.h"
#include "testing/inputs.h"
#include "tools/bench/cell_process.h"
#include "tools/bench/finalize_rows.h"
#include "tools/bench/loopback.h"
#include "tools/bench/measure.h"
#include "tools/bench/stages.h"

namespace stoker::bench {
namespace {

constexpr absl::Duration kReplayTimeout = absl::Seconds(1);
// Of launches that report nothing; a replay takes 10 ms at most.
constexpr absl::Duration kPeerTimeout = absl::Milliseconds(250);
constexpr absl::Duration kGroupTimeout = absl::Seconds(1);
constexpr int kTrialReplays = 3;

struct CellData {
  std::vector<testing::Inputs> inputs;
  std::vector<testing::DeviceInputs> device;
  moe::OracleResult exact;
};

// A contender that passed its trial.
struct Entry {
  Contender contender;
  std::optional<RowErrors> errors;
  LaunchTimer timer;
  double trial_us;  // the fastest replay of the trial, less the edge where that does not count
  std::vector<double> times_us;
};

// What a restart of the cell leaves out: one launch shape of a contender.
std::string Key(const Contender& contender) {
  return absl::StrCat(contender.name, " ", contender.launch_shape);
}

absl::StatusOr<CellData> MakeData(const FinalizeBenchOptions& options, const Cell& cell) {
  testing::InputOptions input;
  input.shape = cell.shape;
  input.top_k = options.top_k;
  CellData data;
  data.inputs.resize(cell.world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < cell.world; ++rank) {
    threads.emplace_back([&, rank] { data.inputs[rank] = testing::MakeInputs(input, rank); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<moe::FinalizeArguments> ranks;
  for (int rank = 0; rank < cell.world; ++rank) {
    STOKER_ASSIGN_OR_RETURN(testing::DeviceInputs device,
                            testing::DeviceInputs::Upload(data.inputs[rank], cell.shape));
    data.device.push_back(std::move(device));
    ranks.push_back(data.inputs[rank].finalize);
  }
  data.exact = moe::OracleFinalize(cell.shape, ranks, data.inputs[0].norm);
  return data;
}

absl::Duration TimeoutOf(const Contender& contender) {
  return contender.own ? kReplayTimeout : kPeerTimeout;
}

// Launches once on poisoned outputs, and gives rank 0's; DataLoss if another rank has other bits
// and the contender leaves any that mean something.
absl::StatusOr<moe::NormResult> RunOnce(testing::StreamWorld& world, CellData& data,
                                        const Contender& contender) {
  for (int rank = 0; rank < world.world(); ++rank) {
    STOKER_RETURN_IF_ERROR(data.device[rank].Poison(world.stream(rank)));
  }
  STOKER_RETURN_IF_ERROR(world.Synchronize(kReplayTimeout));
  for (int rank = 0; rank < world.world(); ++rank) {
    STOKER_RETURN_IF_ERROR(contender.launch(rank, data.device[rank].finalize(),
                                            data.device[rank].norm(), world.stream(rank)));
  }
  STOKER_RETURN_IF_ERROR(world.Synchronize(TimeoutOf(contender)));
  STOKER_ASSIGN_OR_RETURN(moe::NormResult first, data.device[0].Download());
  for (int rank = 1; contender.outputs && rank < world.world(); ++rank) {
    STOKER_ASSIGN_OR_RETURN(const moe::NormResult other, data.device[rank].Download());
    if (other.residual_out != first.residual_out || other.norm_out != first.norm_out) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " has other bits than rank 0"));
    }
  }
  return first;
}

// Runs a contender once, checks it, captures it, and replays it until it is warm.
absl::StatusOr<Entry> Trial(const FinalizeBenchOptions& options, testing::StreamWorld& world,
                            CellData& data, const Cell& cell, const Contender& contender) {
  STOKER_ASSIGN_OR_RETURN(const moe::NormResult result, RunOnce(world, data, contender));
  std::vector<cudaStream_t> streams;
  for (int rank = 0; rank < world.world(); ++rank) streams.push_back(world.stream(rank));
  const int launches = contender.launches > 0 ? contender.launches : options.launches;
  STOKER_ASSIGN_OR_RETURN(
      LaunchTimer timer,
      LaunchTimer::Capture(streams, launches, [&](int rank, cudaStream_t stream) {
        return contender.launch(rank, data.device[rank].finalize(), data.device[rank].norm(),
                                stream);
      }));
  double fastest = 0.0;
  for (int i = 0; i < kTrialReplays; ++i) {
    STOKER_ASSIGN_OR_RETURN(const double time, timer.Replay(TimeoutOf(contender)));
    if (i == 0 || time < fastest) fastest = time;
  }
  std::optional<RowErrors> errors;
  if (contender.outputs) errors = ErrorsOf(cell, data.exact, result);
  return Entry{contender, errors, std::move(timer), fastest, {}};
}

// What the ranks report once the group's own deadline has passed.
std::string Reports(testing::StreamWorld& world) {
  absl::SleepFor(kGroupTimeout);
  std::string text;
  for (int rank = 0; rank < world.world(); ++rank) {
    const absl::Status health = world.communicator(rank).Health();
    if (!health.ok()) absl::StrAppend(&text, "; rank ", rank, " reports: ", health.message());
  }
  return text;
}

absl::Status Replay(const FinalizeBenchOptions& options, const Cell& cell, Entry& entry,
                    bool warm_up) {
  nvtxRangePushA(absl::StrFormat("%s, world %d, hidden %d, tokens %d", entry.contender.name,
                                 cell.world, cell.shape.hidden, cell.shape.tokens)
                     .c_str());
  absl::Status status;
  for (int i = 0; i < options.replays_per_round && status.ok(); ++i) {
    const absl::StatusOr<double> time = entry.timer.Replay(TimeoutOf(entry.contender));
    status = time.status();
    if (status.ok() && !warm_up) entry.times_us.push_back(*time);
  }
  nvtxRangePop();
  return status;
}

// Own contenders, what bounds them, and the peers that have not been seen to fail in this cell.
absl::StatusOr<std::vector<Contender>> MakeContenders(const FinalizeBenchOptions& options,
                                                      const std::vector<Peer>& peers,
                                                      const Cell& cell, testing::StreamWorld& world,
                                                      CellRun& run) {
  std::vector<Contender> contenders =
      OwnContenders(options.contenders, cell.shape, options.top_k, world);
  STOKER_ASSIGN_OR_RETURN(std::vector<Contender> others,
                          BoundContenders(options.contenders, cell.shape, options.top_k, world));
  for (const Peer& peer : peers) {
    if (!options.contenders.Wants(peer.name) || run.Failed(peer.name)) continue;
    auto launches = peer.make(cell.world, cell.shape, options.contenders.programmatic);
    if (!launches.ok()) {
      run.ReportFailure(peer.name, launches.status());
      continue;
    }
    for (PeerLaunch& launch : *launches) {
      Contender contender;
      contender.name = peer.name;
      contender.launch_shape = launch.launch_shape;
      contender.launch = std::move(launch.launch);
      contender.bytes = launch.bytes > 0
                            ? launch.bytes
                            : LeastBytes(peer.way, cell.world, cell.shape, options.top_k);
      contender.outputs = launch.outputs;
      if (!run.Failed(Key(contender))) others.push_back(std::move(contender));
    }
  }
  // Between Stoker and its twin.
  contenders.insert(contenders.end() - 1, std::make_move_iterator(others.begin()),
                    std::make_move_iterator(others.end()));
  return contenders;
}

// Traffic is measured without what any launch costs: 0 for the other contenders.
double EdgeUs(const std::vector<Entry>& entries, const Contender& contender) {
  if (!absl::StartsWith(contender.name, "traffic")) return 0.0;
  for (const Entry& entry : entries) {
    if (entry.contender.name != StageName(Stage::kEdge)) continue;
    return entry.times_us.empty() ? entry.trial_us : Summarize(entry.times_us).median_us;
  }
  return 0.0;
}

// The time that this cell cannot beat: the launch without data, and its bytes at the rate at which
// the same accesses run without waiting, by the exchange for which that takes less.
std::optional<double> BoundUs(const std::vector<Entry>& entries) {
  std::optional<double> floor, data;
  double bytes[2] = {}, rate[2] = {};
  for (const Entry& entry : entries) {
    const Contender& contender = entry.contender;
    if (entry.times_us.empty()) continue;
    const double median = Summarize(entry.times_us).median_us;
    const bool two_shot = absl::StrContains(contender.name, "two-shot");
    if (contender.name == "floor") floor = median;
    if (absl::StartsWith(contender.name, "traffic")) {
      rate[two_shot] = static_cast<double>(contender.bytes) / (median - EdgeUs(entries, contender));
      bytes[two_shot] = static_cast<double>(contender.bytes) / contender.repeats;
    }
  }
  for (int way = 0; way < 2; ++way) {
    if (rate[way] == 0.0) continue;
    const double time = bytes[way] / rate[way];
    if (!data.has_value() || time < *data) data = time;
  }
  if (!floor.has_value() || !data.has_value()) return std::nullopt;
  return *floor + *data;
}

// In the child process. Returns an error only for Stoker's own contenders; a peer that fails is
// reported, and ends the process if its launches may still be on the GPU.
absl::Status RunCell(const FinalizeBenchOptions& options, const std::vector<Peer>& peers,
                     const Cell& cell, CellRun& run) {
  comm::GroupOptions group;
  group.capacity = std::max(1, cell.shape.tokens);
  group.hidden_max = cell.shape.hidden;
  group.timeout = group.startup_timeout = kGroupTimeout;
  STOKER_ASSIGN_OR_RETURN(auto world, testing::StreamWorld::Create(cell.world, group));
  STOKER_ASSIGN_OR_RETURN(CellData data, MakeData(options, cell));
  STOKER_ASSIGN_OR_RETURN(const RowContext context, GpuContext(options));
  STOKER_ASSIGN_OR_RETURN(RowWriter rows, RowWriter::Open(options.out, context));
  const auto judge = [&](const Contender& contender, const absl::Status& status) {
    if (status.ok()) return status;
    if (contender.own) {
      return absl::Status(status.code(),
                          absl::StrCat(contender.name, ": ", status.message(), Reports(*world)));
    }
    rows.WriteFailure(cell, options, contender, status);
    run.ReportFailure(Key(contender), status);
    // Its launches may still be on the GPU, unless it only got other bits on other ranks.
    if (!absl::IsDataLoss(status)) run.StartAgain();
    return absl::OkStatus();
  };
  STOKER_ASSIGN_OR_RETURN(const std::vector<Contender> contenders,
                          MakeContenders(options, peers, cell, *world, run));
  std::vector<Entry> entries;
  for (const Contender& contender : contenders) {
    auto entry = Trial(options, *world, data, cell, contender);
    STOKER_RETURN_IF_ERROR(judge(contender, entry.status()));
    if (!entry.ok()) continue;
    entry->trial_us = (entry->trial_us - EdgeUs(entries, contender)) / contender.repeats;
    if (entries.empty() || entries.back().contender.name != contender.name) {
      entries.push_back(std::move(*entry));
    } else if (entry->trial_us < entries.back().trial_us) {
      entries.pop_back();
      entries.push_back(std::move(*entry));
    }
  }
  for (int round = -1; round < options.rounds; ++round) {
    for (size_t i = 0; i < entries.size(); ++i) {
      Entry& entry = entries[round % 2 == 0 ? i : entries.size() - 1 - i];
      if (!entry.contender.timed) continue;
      STOKER_RETURN_IF_ERROR(judge(entry.contender, Replay(options, cell, entry, round < 0)));
    }
  }
  const std::optional<double> bound = BoundUs(entries);
  for (const Entry& entry : entries) {
    std::optional<Timing> timing;
    if (entry.contender.timed) timing = Summarize(entry.times_us);
    rows.Write(cell, options, entry.contender, timing, entry.errors,
               {bound, EdgeUs(entries, entry.contender)});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchFinalize(const FinalizeBenchOptions& options, const std::vector<Peer>& peers) {
  std::set<std::string> done;
  if (options.resume) {
    STOKER_ASSIGN_OR_RETURN(done, FinishedCells(options.out));
  }
  const size_t count = options.worlds.size() * options.hidden.size() * options.tokens.size();
  size_t number = 0;
  const absl::Time start = absl::Now();
  absl::Status result;
  for (int world : options.worlds) {
    for (int hidden : options.hidden) {
      std::vector<Cell> cells;
      std::vector<std::string> names;
      for (int tokens : options.tokens) {
        const Cell cell{world, {tokens, hidden, options.type}};
        if (done.count(CellKey(options.loopback ? "loopback" : "streams", cell)) > 0) continue;
        cells.push_back(cell);
        names.push_back(absl::StrFormat("world %d, hidden %d, tokens %d", world, hidden, tokens));
      }
      number += options.tokens.size() - cells.size();
      if (cells.empty()) continue;
      result.Update(RunInChild(names, [&](size_t i, CellRun& run) {
        absl::FPrintF(stderr, "cell %d of %d: %s; %.0f s so far\n", number + i + 1, count, names[i],
                      absl::ToDoubleSeconds(absl::Now() - start));
        return options.loopback ? RunLoopbackCell(options, cells[i])
                                : RunCell(options, peers, cells[i], run);
      }));
      number += cells.size();
    }
  }
  return result;
}

}  // namespace stoker::bench
