// What the offload commands share: limits of their flags, and the kernel that runs.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "offload/dispatch/expert_kernel.h"

namespace stoker::command {

// InvalidArgument with the flag, its value and the limits, unless low <= value <= high.
absl::Status InRange(absl::string_view flag, int value, int low, int high);

// --pairs, or `usual` if it was not given.
absl::StatusOr<int> PairsFlag(int usual);

// The CPU kernel that STOKER_CPU_KERNEL names, else the fastest that this CPU runs; lives for ever.
absl::StatusOr<const offload::ExpertKernel*> ChosenKernel();

}  // namespace stoker::command
