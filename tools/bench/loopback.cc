#include "tools/bench/loopback.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "moe/descriptor.h"
#include "moe/fused_cuda.h"
#include "moe/reference.h"
#include "testing/inputs.h"
#include "testing/stream_world.h"
#include "tools/bench/feeder.h"
#include "tools/bench/measure.h"

namespace stoker::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(1);

// Rank 0, its inputs and its feeder's stream.
class Fed {
 public:
  static absl::StatusOr<std::unique_ptr<Fed>> Create(const FinalizeBenchOptions& options,
                                                     const Cell& cell) {
    int sms = 0;
    STOKER_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    comm::GroupOptions group;
    group.name = "loopback";
    group.capacity = std::max(1, cell.shape.tokens);
    group.hidden_max = cell.shape.hidden;
    group.timeout = group.startup_timeout = kTimeout;
    auto fed = std::unique_ptr<Fed>(new Fed(cell));
    STOKER_ASSIGN_OR_RETURN(
        fed->world_, testing::StreamWorld::Create(cell.world, group,
                                                  {.sm_budget = std::max(1, sms - kFeederSms)}));
    testing::InputOptions input;
    input.shape = cell.shape;
    input.top_k = options.top_k;
    fed->inputs_ = testing::MakeInputs(input, 0);
    STOKER_ASSIGN_OR_RETURN(fed->device_, testing::DeviceInputs::Upload(fed->inputs_, cell.shape));
    return fed;
  }

  comm::CudaCommunicator& communicator() { return world_->communicator(0); }
  cudaStream_t stream() const { return world_->stream(0); }

  absl::Status Launch(const moe::LaunchOptions& launch) {
    return moe::MoeFinalizeAllReduceRmsNorm(communicator(), cell_.shape, device_.finalize(),
                                            device_.norm(), launch, stream());
  }

  absl::Status StartFeeding(const moe::LaunchOptions& launch, int launches) {
    comm::LaunchDescriptor descriptor = moe::DescribeFinalize(
        cell_.shape, device_.finalize(), device_.norm(), launch, communicator().generation());
    descriptor.protocol = moe::ProtocolOf(communicator(), cell_.shape, launch);
    const Feed feed{communicator().Params(), descriptor.protocol, cell_.shape.tokens,
                    cell_.shape.hidden / comm::kPacketElements, comm::Signature(descriptor)};
    // The second rank's stream, which nothing else uses.
    return bench::StartFeeding(feed, launches, world_->stream(1));
  }

  // Whether a launch gives what the reference says. Results that the feeder made up are only looked
  // for.
  absl::Status Check(const moe::LaunchOptions& launch) {
    STOKER_RETURN_IF_ERROR(device_.Poison(stream()));
    STOKER_RETURN_IF_ERROR(world_->Synchronize(kTimeout));
    STOKER_RETURN_IF_ERROR(StartFeeding(launch, 1));
    STOKER_RETURN_IF_ERROR(Launch(launch));
    STOKER_RETURN_IF_ERROR(world_->Synchronize(2 * kTimeout));
    STOKER_RETURN_IF_ERROR(communicator().Health());
    STOKER_ASSIGN_OR_RETURN(const moe::NormResult got, device_.Download());
    const size_t hidden = cell_.shape.hidden;
    const size_t elements = cell_.shape.tokens * hidden;
    std::vector<moe::Rows> partials(cell_.world, moe::Rows(elements, kFedElement));
    partials[0] = moe::ReferencePartial(cell_.shape, inputs_.finalize);
    const moe::NormResult want = moe::ReferenceSumAndNorm(cell_.shape, partials, inputs_.norm);
    const bool two_shot =
        moe::ProtocolOf(communicator(), cell_.shape, launch) == comm::Protocol::kTwoShot;
    for (size_t i = 0; i < elements; ++i) {
      const bool made_up = two_shot && i / hidden % cell_.world != 0;
      const bool right = made_up ? got.residual_out[i] == kFedElement
                                 : got.residual_out[i] == want.residual_out[i] &&
                                       got.norm_out[i] == want.norm_out[i];
      if (!right) {
        return absl::DataLossError(absl::StrCat("loopback: token ", i / hidden, ", element ",
                                                i % hidden, " is not the reference's"));
      }
    }
    return absl::OkStatus();
  }

 private:
  explicit Fed(const Cell& cell) : cell_(cell) {}

  Cell cell_;
  std::unique_ptr<testing::StreamWorld> world_;
  testing::Inputs inputs_;
  testing::DeviceInputs device_;
};

struct Entry {
  Contender contender;
  moe::LaunchOptions launch;
  std::optional<LaunchTimer> timer;
  std::vector<double> times_us;
};

std::vector<Entry> MakeEntries(const FinalizeBenchOptions& options, const Cell& cell, Fed& fed) {
  moe::LaunchOptions launch;
  launch.programmatic_launch = options.contenders.programmatic;
  const comm::Protocol protocol = moe::ProtocolOf(fed.communicator(), cell.shape, launch);
  std::vector<Entry> entries;
  const auto add = [&](const std::string& name, comm::Protocol which) {
    Entry entry;
    entry.launch = launch;
    entry.launch.protocol = which;
    entry.contender.name = name;
    entry.contender.launch_shape =
        moe::ShapeOf(fed.communicator(), cell.shape, entry.launch).ToString();
    entries.push_back(std::move(entry));
  };
  add("stoker", protocol);
  if (cell.world > 2) {
    const comm::Protocol other =
        protocol == comm::Protocol::kOneShot ? comm::Protocol::kTwoShot : comm::Protocol::kOneShot;
    add(absl::StrCat("stoker, ", comm::ProtocolName(other)), other);
  }
  add("stoker again", protocol);
  return entries;
}

}  // namespace

absl::Status RunLoopbackCell(const FinalizeBenchOptions& options, const Cell& cell) {
  if (cell.world < 2) return absl::InvalidArgumentError("loopback needs a world of 2 or more");
  STOKER_ASSIGN_OR_RETURN(const std::unique_ptr<Fed> fed, Fed::Create(options, cell));
  STOKER_ASSIGN_OR_RETURN(RowContext context, GpuContext(options));
  context.placement = "loopback";
  STOKER_ASSIGN_OR_RETURN(RowWriter rows, RowWriter::Open(options.out, context));
  std::vector<Entry> entries = MakeEntries(options, cell, *fed);
  for (Entry& entry : entries) {
    STOKER_RETURN_IF_ERROR(fed->Check(entry.launch));
    STOKER_ASSIGN_OR_RETURN(
        LaunchTimer timer,
        LaunchTimer::Capture({fed->stream()}, options.launches,
                             [&](int, cudaStream_t) { return fed->Launch(entry.launch); }));
    entry.timer.emplace(std::move(timer));
  }
  for (int round = -1; round < options.rounds; ++round) {
    for (size_t i = 0; i < entries.size(); ++i) {
      Entry& entry = entries[round % 2 == 0 ? i : entries.size() - 1 - i];
      for (int replay = 0; replay < options.replays_per_round; ++replay) {
        STOKER_RETURN_IF_ERROR(fed->StartFeeding(entry.launch, options.launches));
        STOKER_ASSIGN_OR_RETURN(const double time, entry.timer->Replay(2 * kTimeout));
        // A launch that gave up ends like any other; its time is no time.
        STOKER_RETURN_IF_ERROR(fed->communicator().Health());
        if (round >= 0) entry.times_us.push_back(time);
      }
    }
  }
  for (const Entry& entry : entries) {
    rows.Write(cell, options, entry.contender, Summarize(entry.times_us), std::nullopt,
               CellBound{});
  }
  return absl::OkStatus();
}

}  // namespace stoker::bench
