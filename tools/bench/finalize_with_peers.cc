// `stoker bench finalize` with the peers that are installed (tools/bench/peers/fetch).
#include <string>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tools/bench/peers/flashinfer_finalize.h"
#include "tools/stoker/bench_finalize_flags.h"

namespace {

absl::StatusOr<stoker::bench::ContenderLaunch> MakeFlashInfer(int world,
                                                              const stoker::moe::Shape& shape,
                                                              bool programmatic) {
  STOKER_ASSIGN_OR_RETURN(
      std::shared_ptr<stoker::bench::FlashInferFinalize> peer,
      stoker::bench::FlashInferFinalize::Create(world, shape.tokens, shape.hidden));
  return stoker::bench::ContenderLaunch(
      [peer, shape, programmatic](int rank, const stoker::moe::FinalizeArguments& finalize,
                                  const stoker::moe::NormArguments& norm, cudaStream_t stream) {
        return peer->Launch(rank, shape, finalize, norm, programmatic, stream);
      });
}

}  // namespace

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::string name =
      absl::StrCat("flashinfer ", stoker::bench::FlashInferFinalize::Version());
  return stoker::command::RunBenchFinalize({{name, MakeFlashInfer}});
}
