// One launch of a fused tail on a CPU rank, compared with the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "moe/fused_cpu.h"
#include "testing/comparers.h"
#include "testing/inputs.h"

namespace stoker::testing {

// Poisoned, so that what is not written differs.
struct Outputs {
  explicit Outputs(const moe::Shape& shape)
      : residual(static_cast<size_t>(shape.tokens) * shape.hidden, 0xABAB), norm(residual) {}
  moe::Rows residual;
  moe::Rows norm;
};

inline absl::Status Compare(const moe::Shape& shape, const moe::NormResult& expected,
                            const Outputs& out) {
  const std::string residual = DifferenceInBits(shape, expected.residual_out, out.residual);
  const std::string normed = DifferenceInBits(shape, expected.norm_out, out.norm);
  if (residual.empty() && normed.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("residual_out: ", residual, "; norm_out: ", normed));
}

// Makes inputs, launches the finalize, and the reduction if there are experts, and compares with
// the reference.
inline absl::Status LaunchAndCompare(comm::CpuCommunicator& communicator,
                                     const InputOptions& options, uint32_t site = 0) {
  std::vector<Inputs> ranks;
  for (int r = 0; r < communicator.plan().world; ++r) ranks.push_back(MakeInputs(options, r));
  const Inputs& mine = ranks[communicator.plan().rank];
  Outputs out(options.shape);
  moe::NormArguments norm = mine.norm;
  norm.residual_out = out.residual.data();
  norm.norm_out = out.norm.data();
  STOKER_RETURN_IF_ERROR(moe::MoeFinalizeAllReduceRmsNorm(communicator, options.shape,
                                                          mine.finalize, norm, {.site = site}));
  STOKER_RETURN_IF_ERROR(Compare(options.shape, Expected(options.shape, ranks), out));
  if (options.experts == 0) return absl::OkStatus();
  out = Outputs(options.shape);
  norm.residual_out = out.residual.data();
  norm.norm_out = out.norm.data();
  STOKER_RETURN_IF_ERROR(moe::MoeReduceAllReduceRmsNorm(communicator, options.shape, mine.reduction,
                                                        norm, {.site = site}));
  return Compare(options.shape, ExpectedOfReduction(options.shape, ranks), out);
}

}  // namespace stoker::testing
