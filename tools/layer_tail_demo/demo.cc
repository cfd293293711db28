#include "tools/layer_tail_demo/demo.h"

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "moe/oracle.h"
#include "testing/comparers.h"

namespace stoker::demo {

testing::InputOptions DemoInputs(int tokens) {
  testing::InputOptions options;
  options.shape = {tokens, kHidden, comm::WireType::kBf16};
  options.top_k = kTopK;
  return options;
}

void Progress(const std::string& what) {
  absl::FPrintF(stderr, "  ... %s\n", what);
  std::fflush(stderr);
}

absl::Status CheckAndPrint(const Result& result) {
  const testing::InputOptions options = DemoInputs(result.tokens);
  std::vector<testing::Inputs> ranks;
  std::vector<moe::FinalizeArguments> finalize;
  for (int rank = 0; rank < kWorld; ++rank) ranks.push_back(testing::MakeInputs(options, rank));
  for (const testing::Inputs& in : ranks) finalize.push_back(in.finalize);
  const moe::NormResult expected = testing::Expected(options.shape, ranks);
  const bool reference_equal = expected.residual_out == result.outputs.residual_out &&
                               expected.norm_out == result.outputs.norm_out;
  const moe::OracleResult exact = moe::OracleFinalize(options.shape, finalize, ranks[0].norm);
  const comm::WireType type = options.shape.wire_type;
  const double error = testing::Errors(type, exact.residual_out, result.outputs.residual_out).mean;
  const double floor = testing::RoundingFloor(type, exact.residual_out).mean;
  const double norm_error = testing::Errors(type, exact.norm_out, result.outputs.norm_out).mean;
  absl::PrintF(
      "T = %-3d  %10.2f us per launch   mean error against FP64: residual %.2e (rounding floor "
      "%.2e), "
      "norm %.2e   all ranks bitwise equal: %s   equal to the reference: %s   launch: %s\n",
      result.tokens, result.us_per_launch, error, floor, norm_error,
      result.ranks_equal ? "yes" : "NO", reference_equal ? "yes" : "NO", result.launch);
  std::fflush(stdout);
  if (!result.ranks_equal) return absl::DataLossError("the ranks' outputs differ");
  if (!reference_equal) return absl::DataLossError("the outputs differ from the reference");
  // The published kernel with FP32 sums has 6.0e-3 and 1.8e-3 on these distributions.
  if (!(error <= 6.2e-3 && norm_error <= 1.85e-3)) {
    return absl::DataLossError(
        absl::StrCat("mean errors ", error, " and ", norm_error, " are above 6.2e-3 and 1.85e-3"));
  }
  return absl::OkStatus();
}

}  // namespace stoker::demo
