#include "tools/bench/guards.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "moe/fused_cuda.h"
#include "moe/kernels.h"
#include "moe/kernels_hash.h"
#include "testing/inputs.h"
#include "testing/stream_world.h"
#include "tools/bench/cell_process.h"
#include "tools/bench/finalize_rows.h"
#include "tools/bench/measure.h"
#include "tools/bench/unguarded.h"

namespace stoker::bench {
namespace {

constexpr int kPairs = 40;
constexpr int kReplaysATurn = 5;
constexpr absl::Duration kTimeout = absl::Seconds(1);

struct Resources {
  int registers = 0, local_bytes = 0;
  int ctas_per_sm = 0, clusters = 0;  // co-resident, on one SM and on the whole GPU
};

absl::StatusOr<Resources> ResourcesOf(const void* kernel, const comm::LaunchShape& shape) {
  Resources resources;
  cudaFuncAttributes attributes;
  STOKER_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  resources.registers = attributes.numRegs;
  resources.local_bytes = static_cast<int>(attributes.localSizeBytes);
  STOKER_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resources.ctas_per_sm, kernel,
                                                            shape.cta_threads(), 0));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.ctas());
  config.blockDim = dim3(shape.cta_threads());
  config.attrs = &cluster;
  config.numAttrs = 1;
  STOKER_CUDA(cudaOccupancyMaxActiveClusters(&resources.clusters, kernel, &config));
  return resources;
}

// Differences of pairs: the second of two contenders less the first.
class Pairs {
 public:
  Pairs(LaunchTimer& first, LaunchTimer& second) : timers_{&first, &second} {}

  absl::Status Run(bool second_begins) {
    double sums[2] = {};
    for (const bool swap : {false, true, true, false}) {
      const bool which = swap != second_begins;
      std::vector<double> times_us;
      for (int i = 0; i < kReplaysATurn; ++i) {
        STOKER_ASSIGN_OR_RETURN(const double time, timers_[which]->Replay(kTimeout));
        times_us.push_back(time);
      }
      const double turn_us = Summarize(std::move(times_us)).median_us;
      turns_us_[which].push_back(turn_us);
      sums[which] += turn_us;
    }
    differences_us_.push_back((sums[1] - sums[0]) / 2);
    return absl::OkStatus();
  }

  double median_us(int which) const { return Summarize(turns_us_[which]).median_us; }
  double mean_us() const {
    double sum = 0.0;
    for (double difference : differences_us_) sum += difference;
    return sum / count();
  }
  // Half of the 95% confidence interval of the mean.
  double ci95_us() const {
    constexpr double kStudent = 2.02;  // 40 pairs
    double squares = 0.0;
    for (double difference : differences_us_) squares += std::pow(difference - mean_us(), 2);
    return kStudent * std::sqrt(squares / (count() - 1) / count());
  }

 private:
  double count() const { return static_cast<double>(differences_us_.size()); }
  LaunchTimer* timers_[2];
  std::vector<double> turns_us_[2], differences_us_;
};

class GuardCell {
 public:
  static absl::StatusOr<GuardCell> Create(const FinalizeBenchOptions& options, const Cell& cell) {
    GuardCell made(cell);
    comm::GroupOptions group;
    group.capacity = cell.shape.tokens;
    group.hidden_max = cell.shape.hidden;
    group.timeout = group.startup_timeout = kTimeout;
    STOKER_ASSIGN_OR_RETURN(made.world_, testing::StreamWorld::Create(cell.world, group));
    testing::InputOptions input;
    input.shape = cell.shape;
    input.top_k = options.top_k;
    std::vector<testing::Inputs> inputs(static_cast<size_t>(cell.world));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < cell.world; ++rank) {
      threads.emplace_back([&, rank] { inputs[rank] = testing::MakeInputs(input, rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const testing::Inputs& in : inputs) {
      STOKER_ASSIGN_OR_RETURN(testing::DeviceInputs device,
                              testing::DeviceInputs::Upload(in, cell.shape));
      made.device_.push_back(std::move(device));
    }
    return made;
  }

  comm::CudaCommunicator& communicator() { return world_->communicator(0); }

  absl::Status Launch(int rank, const moe::LaunchOptions& launch) {
    return moe::MoeFinalizeAllReduceRmsNorm(world_->communicator(rank), cell_.shape,
                                            device_[rank].finalize(), device_[rank].norm(), launch,
                                            world_->stream(rank));
  }

  absl::StatusOr<moe::NormResult> RunOnce(const moe::LaunchOptions& launch) {
    for (int rank = 0; rank < cell_.world; ++rank) {
      STOKER_RETURN_IF_ERROR(device_[rank].Poison(world_->stream(rank)));
    }
    STOKER_RETURN_IF_ERROR(world_->Synchronize(kTimeout));
    for (int rank = 0; rank < cell_.world; ++rank) STOKER_RETURN_IF_ERROR(Launch(rank, launch));
    STOKER_RETURN_IF_ERROR(world_->Synchronize(kTimeout));
    return device_[0].Download();
  }

  absl::StatusOr<LaunchTimer> Capture(int launches, const moe::LaunchOptions& launch) {
    std::vector<cudaStream_t> streams;
    for (int rank = 0; rank < cell_.world; ++rank) streams.push_back(world_->stream(rank));
    return LaunchTimer::Capture(streams, launches,
                                [&](int rank, cudaStream_t) { return Launch(rank, launch); });
  }

 private:
  explicit GuardCell(const Cell& cell) : cell_(cell) {}
  Cell cell_;
  std::unique_ptr<testing::StreamWorld> world_;
  std::vector<testing::DeviceInputs> device_;
};

nlohmann::json ToJson(const Resources& resources) {
  return {{"registers", resources.registers},
          {"local_bytes", resources.local_bytes},
          {"ctas_per_sm", resources.ctas_per_sm},
          {"clusters", resources.clusters}};
}

absl::Status RunCell(const FinalizeBenchOptions& options, const Cell& cell) {
  STOKER_ASSIGN_OR_RETURN(GuardCell group, GuardCell::Create(options, cell));
  moe::LaunchOptions shipped{.programmatic_launch = true};
  const comm::Protocol protocol = moe::ProtocolOf(group.communicator(), cell.shape, shipped);
  const comm::LaunchShape shape = moe::ShapeOf(group.communicator(), cell.shape, shipped);
  const void* kernel = moe::FindKernel(
      {comm::Op::kFinalize, protocol, cell.shape.wire_type, cell.world, shape.vectors});
  moe::LaunchOptions unguarded = shipped;
  unguarded.kernel = UnguardedFinalizeKernel(protocol, cell.world, shape.vectors);
  if (kernel == nullptr || unguarded.kernel == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no unguarded build for world ", cell.world, " and ", shape.vectors,
                     " vectors a thread: worlds up to 4, one or two vectors"));
  }
  STOKER_ASSIGN_OR_RETURN(const Resources with, ResourcesOf(kernel, shape));
  STOKER_ASSIGN_OR_RETURN(const Resources without, ResourcesOf(unguarded.kernel, shape));
  STOKER_ASSIGN_OR_RETURN(const moe::NormResult right, group.RunOnce(shipped));
  STOKER_ASSIGN_OR_RETURN(const moe::NormResult other, group.RunOnce(unguarded));
  if (right.residual_out != other.residual_out || right.norm_out != other.norm_out) {
    return absl::DataLossError("the unguarded kernel has other bits than the shipped one");
  }
  STOKER_ASSIGN_OR_RETURN(LaunchTimer bare, group.Capture(options.launches, unguarded));
  STOKER_ASSIGN_OR_RETURN(LaunchTimer guarded, group.Capture(options.launches, shipped));
  STOKER_ASSIGN_OR_RETURN(LaunchTimer twin, group.Capture(options.launches, shipped));
  Pairs warm(bare, guarded), cost(bare, guarded), control(twin, guarded);
  STOKER_RETURN_IF_ERROR(warm.Run(false));
  for (int pair = 0; pair < kPairs; ++pair) {
    STOKER_RETURN_IF_ERROR(cost.Run(pair % 2 == 1));
    STOKER_RETURN_IF_ERROR(control.Run(pair % 2 == 1));
  }
  STOKER_RETURN_IF_ERROR(group.communicator().Health());

  STOKER_ASSIGN_OR_RETURN(const RowContext context, GpuContext(options));
  const nlohmann::json row{
      {"op", "guards"},
      {"world", cell.world},
      {"placement", context.placement},
      {"hidden", cell.shape.hidden},
      {"tokens", cell.shape.tokens},
      {"top_k", options.top_k},
      {"dtype", "bf16"},
      {"exchange", comm::ProtocolName(protocol)},
      {"launch", shape.ToString()},
      {"pairs", kPairs},
      {"us_shipped", cost.median_us(1)},
      {"us_unguarded", cost.median_us(0)},
      {"us_cost", cost.mean_us()},
      {"us_cost_ci95", cost.ci95_us()},
      {"us_control", control.mean_us()},
      {"us_control_ci95", control.ci95_us()},
      {"shipped", ToJson(with)},
      {"unguarded", ToJson(without)},
      {"run", context.run},
      {"commit", context.commit},
      {"gpu", context.gpu},
      {"driver", context.driver},
      {"ptx_hash", STOKER_KERNELS_PTX_HASH},
      {"date", absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone())}};
  absl::PrintF(
      "world %d  hidden %d  tokens %4d  %8.3f us, unguarded %8.3f: cost %+.3f +- %.3f us "
      "(%+.2f%%), "
      "A/A %+.3f +- %.3f; registers %d, %d; CTAs an SM %d, %d  %s %s\n",
      cell.world, cell.shape.hidden, cell.shape.tokens, cost.median_us(1), cost.median_us(0),
      cost.mean_us(), cost.ci95_us(), 100.0 * cost.mean_us() / cost.median_us(0), control.mean_us(),
      control.ci95_us(), with.registers, without.registers, with.ctas_per_sm, without.ctas_per_sm,
      comm::ProtocolName(protocol), shape.ToString());
  if (options.out.empty()) return absl::OkStatus();
  std::ofstream file(options.out, std::ios::app);
  if (!(file << row.dump() << std::endl)) {
    return ErrnoStatus(errno, absl::StrCat("write ", options.out));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchGuards(const FinalizeBenchOptions& options) {
  absl::Status result;
  for (int world : options.worlds) {
    for (int hidden : options.hidden) {
      for (int tokens : options.tokens) {
        const Cell cell{world, {tokens, hidden, comm::WireType::kBf16}};
        result.Update(
            RunInChild({absl::StrFormat("world %d, hidden %d, tokens %d", world, hidden, tokens)},
                       [&](size_t, CellRun&) { return RunCell(options, cell); }));
      }
    }
  }
  return result;
}

}  // namespace stoker::bench
