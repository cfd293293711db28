// The same op in FP64, from the same rounded inputs: what the exact result is, to measure errors
// by.
#pragma once

#include <vector>

#include "moe/arguments.h"

namespace stoker::moe {

struct OracleResult {
  std::vector<double> residual_out;
  std::vector<double> norm_out;
};

// `ranks` by rank; `norm` is rank 0's (equal on all). Two threads.
OracleResult OracleFinalize(const Shape& shape, const std::vector<FinalizeArguments>& ranks,
                            const NormArguments& norm);

}  // namespace stoker::moe
