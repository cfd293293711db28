#include "tools/bench/contenders.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "moe/fused_cuda.h"
#include "tools/bench/hand_written.h"
#include "tools/bench/local_finalize.h"
#include "tools/bench/pr6631.h"
#include "tools/bench/unguarded.h"

namespace stoker::bench {
namespace {

Contender Fused(const std::string& name, const moe::LaunchOptions& launch, const moe::Shape& shape,
                testing::StreamWorld& world) {
  return {name, moe::ShapeOf(world.communicator(0), shape, launch).ToString(),
          [&world, shape, launch](int rank, const moe::FinalizeArguments& finalize,
                                  const moe::NormArguments& norm, cudaStream_t stream) {
            return moe::MoeFinalizeAllReduceRmsNorm(world.communicator(rank), shape, finalize, norm,
                                                    launch, stream);
          },
          true};
}

Contender Unfused(const moe::LaunchOptions& launch, const moe::Shape& shape,
                  testing::StreamWorld& world) {
  auto partials = std::make_shared<LocalFinalize>(world.world(), shape);
  return {"unfused", moe::ShapeOf(world.communicator(0), shape, launch).ToString(),
          [&world, shape, launch, partials](int rank, const moe::FinalizeArguments& finalize,
                                            const moe::NormArguments& norm, cudaStream_t stream) {
            STOKER_RETURN_IF_ERROR(
                partials->Launch(rank, finalize, launch.programmatic_launch, stream));
            return moe::AllReduceRmsNorm(world.communicator(rank), shape, partials->output(rank),
                                         norm, launch, stream);
          },
          true};
}

}  // namespace

std::vector<Contender> OwnContenders(const ContenderOptions& options, const moe::Shape& shape,
                                     testing::StreamWorld& world) {
  moe::LaunchOptions launch;
  launch.programmatic_launch = options.programmatic;
  launch.early_trigger = options.early_trigger;
  std::vector<Contender> contenders = {Fused("stoker", launch, shape, world)};
  for (const comm::LaunchShape& choice : options.shapes) {
    moe::LaunchOptions chosen = launch;
    chosen.shape = &choice;
    contenders.push_back(Fused("stoker " + choice.ToString(), chosen, shape, world));
  }
  if (shape.wire_type == comm::WireType::kBf16 && world.world() <= 4 &&
      moe::ShapeOf(world.communicator(0), shape, launch).vectors == 1) {
    moe::LaunchOptions by_hand = launch;
    by_hand.kernel = HandWrittenFinalizeKernel();
    contenders.push_back(Fused("hand-written", by_hand, shape, world));
  }
  const void* unguarded =
      UnguardedFinalizeKernel(moe::ProtocolOf(world.communicator(0), shape, launch), world.world(),
                              moe::ShapeOf(world.communicator(0), shape, launch).vectors);
  if (unguarded != nullptr && shape.wire_type == comm::WireType::kBf16 && !options.early_trigger) {
    moe::LaunchOptions without = launch;
    without.kernel = unguarded;
    contenders.push_back(Fused("unguarded", without, shape, world));
  }
  if (options.programmatic && !options.early_trigger) {
    moe::LaunchOptions early = launch;
    early.early_trigger = true;
    contenders.push_back(Fused("stoker, early trigger", early, shape, world));
  }
  if (world.world() > 2) {
    moe::LaunchOptions other = launch;
    other.protocol =
        moe::ProtocolOf(world.communicator(0), shape, launch) == comm::Protocol::kOneShot
            ? comm::Protocol::kTwoShot
            : comm::Protocol::kOneShot;
    contenders.push_back(
        Fused(absl::StrCat("stoker, ", comm::ProtocolName(*other.protocol)), other, shape, world));
  }
  contenders.push_back(Unfused(launch, shape, world));
  contenders.push_back(Fused("stoker again", launch, shape, world));
  return contenders;
}

Peer Pr6631Peer() {
  return {
      "pr6631",
      [](int world, const moe::Shape& shape, bool programmatic) -> absl::StatusOr<ContenderLaunch> {
        STOKER_ASSIGN_OR_RETURN(std::shared_ptr<Pr6631Finalize> peer,
                                Pr6631Finalize::Create(world, shape));
        return ContenderLaunch(
            [peer, programmatic](int rank, const moe::FinalizeArguments& finalize,
                                 const moe::NormArguments& norm, cudaStream_t stream) {
              return peer->Launch(rank, finalize, norm, programmatic, stream);
            });
      }};
}

}  // namespace stoker::bench
