// The launches that every GPU world must get right: an all-pairs cover of everything that a launch
// of the fused finalize can have; the reduction is launched with the same inputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moe/launch_options.h"
#include "testing/inputs.h"

namespace stoker::testing {

inline constexpr uint64_t kLaunchCasesSeed = 20261201;
inline constexpr int kLaunchCasesTokensMax = 128;
inline constexpr int kLaunchCasesHiddenMax = 7168;

struct LaunchCase {
  std::string name;
  int world = 0;
  InputOptions inputs;
  InputOptions other_inputs;  // the same shape with other values, for replays
  moe::LaunchOptions launch;
  bool graph = false;  // captured and replayed instead of launched once
};

std::vector<LaunchCase> LaunchCases();

}  // namespace stoker::testing
