// The demonstration: the tail of a tensor-parallel MoE decode layer on four ranks.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moe/reference.h"
#include "testing/inputs.h"

namespace stoker::demo {

inline constexpr int kWorld = 4;
inline constexpr int kHidden = 7168;
inline constexpr int kTopK = 8;
inline constexpr int kTokens[] = {1, 4, 16, 64};
inline constexpr int kTokensMax = 64;

// What one number of tokens gave.
struct Result {
  int tokens = 0;
  double us_per_launch = 0.0;
  bool ranks_equal = false;
  std::string launch;
  moe::NormResult outputs;  // of rank 0
};

testing::InputOptions DemoInputs(int tokens);

// A line of progress on standard error.
void Progress(const std::string& what);

// Checks `result` against the reference and FP64 and prints its row; an error if a check fails.
absl::Status CheckAndPrint(const Result& result);

// The two worlds. Each prints what it uses and a row for each number of tokens.
absl::Status RunOnCpuRanks();
absl::Status RunOnGpu();
bool HasGpu();

}  // namespace stoker::demo
