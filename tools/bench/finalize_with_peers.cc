// `stoker bench finalize` with the peers that are installed (tools/bench/peers/fetch).
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tools/bench/local_finalize.h"
#include "tools/bench/peers/flashinfer.h"
#include "tools/stoker/bench_finalize_flags.h"
#include "tools/stoker/command_line.h"

namespace {

using stoker::bench::ContenderLaunch;
using stoker::bench::FlashInferWorkspace;
using stoker::bench::PeerLaunch;
using stoker::bench::Way;
using stoker::moe::FinalizeArguments;
using stoker::moe::NormArguments;
using stoker::moe::Shape;

std::vector<PeerLaunch> ItsOwnShape(ContenderLaunch launch) {
  return {{"its own", std::move(launch)}};
}

absl::StatusOr<std::vector<PeerLaunch>> MakeFinalize(int world, const Shape& shape,
                                                     bool programmatic) {
  STOKER_ASSIGN_OR_RETURN(std::shared_ptr<FlashInferWorkspace> workspace,
                          FlashInferWorkspace::Create(world, shape.tokens, shape.hidden));
  return ItsOwnShape([workspace, shape, programmatic](int rank, const FinalizeArguments& finalize,
                                                      const NormArguments& norm,
                                                      cudaStream_t stream) {
    return stoker::bench::FlashInferFinalize(*workspace, rank, shape, finalize, norm, programmatic,
                                             stream);
  });
}

// Our finalize kernel, then FlashInfer's all-reduce.
stoker::bench::Peer AllReducePeer(const std::string& name, bool one_shot) {
  return {name, one_shot ? Way::kLamportBehind : Way::kBarrierTwoShot,
          [one_shot](int world, const Shape& shape,
                     bool programmatic) -> absl::StatusOr<std::vector<PeerLaunch>> {
            STOKER_ASSIGN_OR_RETURN(std::shared_ptr<FlashInferWorkspace> workspace,
                                    FlashInferWorkspace::Create(world, shape.tokens, shape.hidden));
            auto partials = std::make_shared<stoker::bench::LocalFinalize>(world, shape);
            return ItsOwnShape([=](int rank, const FinalizeArguments& finalize,
                                   const NormArguments& norm, cudaStream_t stream) {
              STOKER_RETURN_IF_ERROR(partials->Launch(rank, finalize, programmatic, stream));
              return stoker::bench::FlashInferAllReduce(*workspace, rank, one_shot, shape,
                                                        partials->output(rank), norm, programmatic,
                                                        stream);
            });
          }};
}

}  // namespace

int main(int argc, char** argv) {
  stoker::command::ParseCommandLine(
      argc, argv, "finalize_with_peers: `stoker bench finalize` with FlashInfer; the same flags\n");
  const std::string flashinfer = absl::StrCat("flashinfer ", stoker::bench::FlashInferVersion());
  return stoker::command::RunBenchFinalize(
      {{flashinfer, Way::kLamport, MakeFinalize},
       AllReducePeer(absl::StrCat(flashinfer, " one-shot all-reduce"), true),
       AllReducePeer(absl::StrCat(flashinfer, " two-shot all-reduce"), false)});
}
