#include "tools/stoker/offload_options.h"

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/environment_variables.h"
#include "base/status.h"
#include "offload/cpu_expert_kernel.h"

ABSL_DECLARE_FLAG(std::optional<int>, pairs);

namespace stoker::command {

absl::Status InRange(absl::string_view flag, int value, int low, int high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", low, " to ", high));
}

absl::StatusOr<int> PairsFlag(int usual) {
  const int pairs = absl::GetFlag(FLAGS_pairs).value_or(usual);
  STOKER_RETURN_IF_ERROR(InRange("pairs", pairs, 2, 10000));
  return pairs;
}

absl::StatusOr<const offload::ExpertKernel*> ChosenKernel() {
  STOKER_ASSIGN_OR_RETURN(const EnvironmentVariables environment, EnvironmentVariables::Read());
  STOKER_ASSIGN_OR_RETURN(const offload::cpu::ExpertKernel* chosen,
                          offload::cpu::ChooseKernel(offload::cpu::DetectCpuFeatures(),
                                                     environment.cpu_kernel.c_str()));
  static const offload::CpuExpertKernel kernel(*chosen);
  return &kernel;
}

}  // namespace stoker::command
