// What bounds a cell: its launch without data, and its accesses without waiting.
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "moe/fused_cuda.h"
#include "tools/bench/contenders.h"
#include "tools/bench/stages.h"
#include "tools/bench/traffic.h"

namespace stoker::bench {
namespace {

// So much in a launch that its beginning and end do not count, and so few launches that they do not
// take longer than the contenders.
constexpr int64_t kTrafficBytes = int64_t{256} << 20;
constexpr int kTrafficLaunches = 4;

// A launch of `shape` with a kernel of tools/bench/stages.h, placed like `like`.
Contender StageContender(const ContenderOptions& options, Stage stage, const moe::Shape& shape,
                         const comm::LaunchShape& like, testing::StreamWorld& world) {
  const auto placed = std::make_shared<comm::LaunchShape>(like);
  moe::LaunchOptions launch;
  launch.programmatic_launch = options.programmatic;
  launch.early_trigger = options.early_trigger;
  launch.protocol = comm::Protocol::kOneShot;
  launch.kernel = StageKernel(stage, world.world());
  Contender contender;
  contender.name = StageName(stage);
  contender.launch_shape = like.ToString();
  contender.own = true;
  contender.outputs = false;
  contender.launch = [&world, shape, launch, placed](
                         int rank, const moe::FinalizeArguments& finalize,
                         const moe::NormArguments& norm, cudaStream_t stream) {
    moe::LaunchOptions options = launch;
    options.shape = placed.get();
    return moe::MoeFinalizeAllReduceRmsNorm(world.communicator(rank), shape, finalize, norm,
                                            options, stream);
  };
  return contender;
}

absl::Status AddTraffic(const ContenderOptions& options, comm::Protocol protocol,
                        const moe::Shape& shape, int top_k, int world,
                        std::vector<Contender>& contenders) {
  const int64_t bytes = LeastBytes(
      protocol == comm::Protocol::kOneShot ? Way::kOneShot : Way::kTwoShot, world, shape, top_k);
  const int passes = static_cast<int>(std::max<int64_t>(1, kTrafficBytes / bytes));
  STOKER_ASSIGN_OR_RETURN(std::shared_ptr<Traffic> traffic,
                          Traffic::Create(protocol, world, shape));
  for (const Traffic::Shape& how : Traffic::Shapes(passes)) {
    Contender contender;
    contender.name = absl::StrCat("traffic, ", comm::ProtocolName(protocol));
    contender.launch_shape = how.ToString();
    contender.bytes = bytes * how.passes;
    contender.repeats = how.passes;
    contender.own = true;
    contender.outputs = false;
    if (how.passes > 1) contender.launches = kTrafficLaunches;
    contender.launch = [traffic, how, programmatic = options.programmatic](
                           int rank, const moe::FinalizeArguments& finalize,
                           const moe::NormArguments& norm, cudaStream_t stream) {
      return traffic->Launch(rank, how, finalize, norm, programmatic, stream);
    };
    contenders.push_back(std::move(contender));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Contender>> BoundContenders(const ContenderOptions& options,
                                                       const moe::Shape& shape, int top_k,
                                                       testing::StreamWorld& world) {
  std::vector<Contender> contenders;
  if (shape.wire_type != comm::WireType::kBf16 || shape.tokens < 1) return contenders;
  moe::LaunchOptions plain;
  plain.early_trigger = options.early_trigger;
  const moe::Shape one{1, shape.hidden, shape.wire_type};
  const comm::LaunchShape like = moe::ShapeOf(world.communicator(0), one, plain);
  if (like.vectors != 1) return contenders;
  const moe::Shape packet{1, comm::kPacketElements, shape.wire_type};
  contenders.push_back(StageContender(options, Stage::kFloor, packet, like, world));
  for (Stage stage : kStages) {
    if (stage == Stage::kEdge || shape.tokens == 1) {
      contenders.push_back(StageContender(options, stage, one, like, world));
    }
  }
  STOKER_RETURN_IF_ERROR(
      AddTraffic(options, comm::Protocol::kOneShot, shape, top_k, world.world(), contenders));
  if (world.world() > 2) {
    STOKER_RETURN_IF_ERROR(
        AddTraffic(options, comm::Protocol::kTwoShot, shape, top_k, world.world(), contenders));
  }
  return contenders;
}

}  // namespace stoker::bench
