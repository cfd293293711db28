// The host checks that every backend makes before a launch. Pure functions; they allocate only when
// they fail. InvalidArgument names the value, the limit and, where it is not obvious, the remedy.
#pragma once

#include "absl/status/status.h"
#include "comm/group.h"
#include "moe/arguments.h"

namespace stoker::moe {

absl::Status ValidateFinalize(const comm::GroupPlan& plan, const Shape& shape,
                              const FinalizeArguments& finalize, const NormArguments& norm);
// Without a group: `output` is [tokens, H] of T.
absl::Status ValidateLocalFinalize(const Shape& shape, const FinalizeArguments& finalize,
                                   const void* output);
absl::Status ValidateReduction(const comm::GroupPlan& plan, const Shape& shape,
                               const ReductionArguments& reduction, const NormArguments& norm);
// `input` is [tokens, H] of T. norm_out may be `input` itself.
absl::Status ValidatePlain(const comm::GroupPlan& plan, const Shape& shape, const void* input,
                           const NormArguments& norm);

// `output` may be `input` itself.
absl::Status ValidateAllReduce(const comm::GroupPlan& plan, const Shape& shape, const void* input,
                               const void* output);

}  // namespace stoker::moe
