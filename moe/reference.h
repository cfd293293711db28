// The numeric contract as plain loops: what every backend must equal bit for bit. Slow,
// single-threaded and without any idea of ranks, launches or vectors wider than the contract names.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/arguments.h"

namespace stoker::moe {

// Rows of T as bit patterns, [tokens, H].
using Rows = std::vector<uint16_t>;

struct NormResult {
  Rows residual_out;
  Rows norm_out;
};

// What one rank contributes (host pointers). For a plain all-reduce the partial is the input
// itself.
Rows ReferencePartial(const Shape& shape, const FinalizeArguments& finalize);

Rows ReferencePartial(const Shape& shape, const ReductionArguments& reduction);

// What every rank gets: `partials` by rank; the output pointers of `norm` are ignored.
NormResult ReferenceSumAndNorm(const Shape& shape, const std::vector<Rows>& partials,
                               const NormArguments& norm);

}  // namespace stoker::moe
