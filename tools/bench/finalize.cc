#include "tools/bench/finalize.h"

#include <nvtx3/nvToolsExt.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "moe/fused_cuda.h"
#include "moe/oracle.h"
#include "testing/comparers.h"
#include "testing/inputs.h"
#include "tools/bench/hand_written.h"
#include "tools/bench/measure.h"

namespace stoker::bench {
namespace {

using nlohmann::json;

constexpr absl::Duration kReplayTimeout = absl::Seconds(4);
constexpr absl::Duration kCellTimeout = absl::Seconds(60);

struct Cell {
  int world;
  moe::Shape shape;
};

struct Contender {
  std::string name;
  std::string launch_shape;
  ContenderLaunch launch;
};

struct CellData {
  std::vector<testing::Inputs> inputs;
  std::vector<testing::DeviceInputs> device;
  moe::OracleResult exact;
};

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

// Launches once on poisoned outputs, and gives rank 0's; an error if another rank has other bits.
absl::StatusOr<moe::NormResult> RunOnce(testing::StreamWorld& world, CellData& data,
                                        const Contender& contender) {
  for (int rank = 0; rank < world.world(); ++rank) {
    STOKER_RETURN_IF_ERROR(data.device[rank].Poison(world.stream(rank)));
    STOKER_RETURN_IF_ERROR(contender.launch(rank, data.device[rank].finalize(),
                                            data.device[rank].norm(), world.stream(rank)));
  }
  STOKER_RETURN_IF_ERROR(world.Synchronize(kReplayTimeout));
  STOKER_ASSIGN_OR_RETURN(moe::NormResult first, data.device[0].Download());
  for (int rank = 1; rank < world.world(); ++rank) {
    STOKER_ASSIGN_OR_RETURN(const moe::NormResult other, data.device[rank].Download());
    if (other.residual_out != first.residual_out || other.norm_out != first.norm_out) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " has other bits than rank 0"));
    }
  }
  return first;
}

absl::StatusOr<json> MeasureRow(const FinalizeBenchOptions& options, testing::StreamWorld& world,
                                CellData& data, const Cell& cell, const Contender& contender) {
  STOKER_ASSIGN_OR_RETURN(const moe::NormResult result, RunOnce(world, data, contender));
  std::vector<cudaStream_t> streams;
  for (int rank = 0; rank < world.world(); ++rank) streams.push_back(world.stream(rank));
  STOKER_ASSIGN_OR_RETURN(const Timing timing,
                          MeasureLaunches(streams, options.launches, options.replays,
                                          kReplayTimeout, [&](int rank, cudaStream_t stream) {
                                            return contender.launch(
                                                rank, data.device[rank].finalize(),
                                                data.device[rank].norm(), stream);
                                          }));
  const comm::WireType type = cell.shape.wire_type;
  const auto residual = testing::Errors(type, data.exact.residual_out, result.residual_out);
  const auto norm = testing::Errors(type, data.exact.norm_out, result.norm_out);
  json row;
  row["us_min"] = timing.min_us;
  row["us_median"] = timing.median_us;
  row["us_p90"] = timing.p90_us;
  row["err_residual_mean"] = residual.mean;
  row["err_residual_max"] = residual.max;
  row["err_norm_mean"] = norm.mean;
  row["err_norm_max"] = norm.max;
  row["err_floor"] = testing::RoundingFloor(type, data.exact.residual_out).mean;
  return row;
}

absl::StatusOr<std::vector<Contender>> MakeContenders(const FinalizeBenchOptions& options,
                                                      const std::vector<Peer>& peers,
                                                      const Cell& cell,
                                                      testing::StreamWorld& world) {
  std::vector<Contender> contenders;
  const auto stoker = [&](const comm::LaunchShape* shape, const std::string& name,
                          const void* kernel = nullptr) {
    moe::LaunchOptions launch;
    launch.programmatic_launch = options.programmatic;
    launch.early_trigger = options.early_trigger;
    launch.shape = shape;
    launch.kernel = kernel;
    contenders.push_back(
        {name, moe::ShapeOf(world.communicator(0), cell.shape, launch).ToString(),
         [&world, shape = cell.shape, launch](int rank, const moe::FinalizeArguments& finalize,
                                              const moe::NormArguments& norm, cudaStream_t stream) {
           return moe::MoeFinalizeAllReduceRmsNorm(world.communicator(rank), shape, finalize, norm,
                                                   launch, stream);
         }});
  };
  stoker(nullptr, "stoker");
  for (const comm::LaunchShape& shape : options.shapes)
    stoker(&shape, "stoker " + shape.ToString());
  const bool hand_written = cell.shape.wire_type == comm::WireType::kBf16 && cell.world <= 4 &&
                            moe::ShapeOf(world.communicator(0), cell.shape, {}).vectors == 1;
  if (hand_written) stoker(nullptr, "hand-written", HandWrittenFinalizeKernel());
  stoker(nullptr, "stoker again");
  for (const Peer& peer : peers) {
    auto launch = peer.make(cell.world, cell.shape, options.programmatic);
    if (!launch.ok()) {
      absl::FPrintF(stderr, "%s: %s\n", peer.name, launch.status().ToString());
      continue;
    }
    contenders.push_back({peer.name, "its own", std::move(*launch)});
  }
  return contenders;
}

// In the child process. Rows go to `out` and a line each to standard output as they are measured;
// the peers come last, because one that hangs ends the process.
absl::Status RunCell(const FinalizeBenchOptions& options, const std::vector<Peer>& peers,
                     const Cell& cell) {
  comm::GroupOptions group;
  group.capacity = std::max(1, cell.shape.tokens);
  group.hidden_max = cell.shape.hidden;
  group.timeout = group.startup_timeout = absl::Seconds(2);
  STOKER_ASSIGN_OR_RETURN(auto world, testing::StreamWorld::Create(cell.world, group));
  STOKER_ASSIGN_OR_RETURN(CellData data, MakeData(options, cell));
  STOKER_ASSIGN_OR_RETURN(const std::vector<Contender> contenders,
                          MakeContenders(options, peers, cell, *world));
  cudaDeviceProp properties;
  STOKER_CUDA(cudaGetDeviceProperties(&properties, 0));
  int driver = 0;
  STOKER_CUDA(cudaDriverGetVersion(&driver));
  std::ofstream out;
  if (!options.out.empty()) out.open(options.out, std::ios::app);
  for (const Contender& contender : contenders) {
    nvtxRangePushA(absl::StrFormat("%s, world %d, hidden %d, tokens %d", contender.name, cell.world,
                                   cell.shape.hidden, cell.shape.tokens)
                       .c_str());
    auto row = MeasureRow(options, *world, data, cell, contender);
    nvtxRangePop();
    json line = row.ok() ? *row : json{{"error", row.status().ToString()}};
    line["op"] = "finalize";
    line["kernel"] = contender.name;
    line["world"] = cell.world;
    line["placement"] = "streams";
    line["hidden"] = cell.shape.hidden;
    line["tokens"] = cell.shape.tokens;
    line["top_k"] = options.top_k;
    line["dtype"] = cell.shape.wire_type == comm::WireType::kBf16 ? "bf16" : "fp16";
    line["programmatic"] = options.programmatic;
    line["launch"] = contender.launch_shape;
    line["run"] = options.run;
    line["commit"] = options.commit;
    line["gpu"] = properties.name;
    line["driver"] = driver;
    line["date"] = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
    if (out.is_open()) out << line.dump() << std::endl;
    absl::PrintF("%-34s world %d  hidden %5d  tokens %4d  ", contender.name, cell.world,
                 cell.shape.hidden, cell.shape.tokens);
    if (row.ok()) {
      absl::PrintF("%8.2f us (min %.2f, p90 %.2f)  err %.2e (floor %.2e) / %.2e  %s\n",
                   double{line["us_median"]}, double{line["us_min"]}, double{line["us_p90"]},
                   double{line["err_residual_mean"]}, double{line["err_floor"]},
                   double{line["err_norm_mean"]}, contender.launch_shape);
    } else {
      absl::PrintF("%s\n", row.status().ToString());
    }
    std::fflush(stdout);
    const bool own = contender.name.rfind("stoker", 0) == 0;
    if (!row.ok() && own) return row.status();
    // A peer's launches that hang would hang the tear-down as well: leave them to the process's
    // end.
    if (!row.ok()) _exit(0);
  }
  return absl::OkStatus();
}

absl::Status RunCellInChild(const FinalizeBenchOptions& options, const std::vector<Peer>& peers,
                            const Cell& cell) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    const absl::Status status = RunCell(options, peers, cell);
    if (!status.ok()) absl::FPrintF(stderr, "%s\n", status.ToString());
    std::fflush(nullptr);
    _exit(status.ok() ? 0 : 1);
  }
  const absl::Time deadline = absl::Now() + kCellTimeout;
  int state = 0;
  while (waitpid(child, &state, WNOHANG) == 0) {
    if (absl::Now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &state, 0);
      return absl::DeadlineExceededError("a cell did not end within its time and was killed");
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("the cell world %d, hidden %d, tokens %d failed",
                                             cell.world, cell.shape.hidden, cell.shape.tokens));
}

}  // namespace

absl::Status BenchFinalize(const FinalizeBenchOptions& options, const std::vector<Peer>& peers) {
  absl::Status result;
  for (int world : options.worlds) {
    for (int hidden : options.hidden) {
      for (int tokens : options.tokens) {
        const Cell cell{world, {tokens, hidden, options.type}};
        result.Update(RunCellInChild(options, peers, cell));
      }
    }
  }
  return result;
}

}  // namespace stoker::bench
