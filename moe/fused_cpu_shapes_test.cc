// Row lengths that fill no whole number of warps, every number of routes, worlds that are no power
// of two, and many tokens, on CPU ranks: bits equal to the reference. The same cases on a GPU are
// in testing/gpu/shapes_test.cc.
#include <gtest/gtest.h>

#include "testing/cpu_launch.h"
#include "testing/cpu_world.h"

namespace stoker::moe {
namespace {

using stoker::testing::InputOptions;
using stoker::testing::LaunchAndCompare;
using stoker::testing::RunCpuThreads;

void RunAndCompare(int world, const std::vector<InputOptions>& launches) {
  comm::GroupOptions group;
  group.name = testing::UniqueGroupName();
  group.setup_timeout = absl::Seconds(20);
  group.timeout = group.startup_timeout = absl::Seconds(30);
  group.capacity = group.hidden_max = 8;
  for (const InputOptions& options : launches) {
    group.capacity = std::max(group.capacity, options.shape.tokens);
    group.hidden_max = std::max(group.hidden_max, options.shape.hidden);
  }
  const auto statuses = RunCpuThreads(
      world, group, [&](comm::CpuCommunicator& communicator, comm::RankExchange&) -> absl::Status {
        for (const InputOptions& options : launches) {
          const absl::Status status = LaunchAndCompare(communicator, options);
          if (status.ok()) continue;
          return absl::Status(status.code(),
                              absl::StrCat("hidden ", options.shape.hidden, ", top-k ",
                                           options.top_k, ": ", status.message()));
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

InputOptions Launch(int tokens, int hidden, int top_k, int experts) {
  InputOptions options;
  options.shape = {tokens, hidden, top_k % 2 == 0 ? comm::WireType::kBf16 : comm::WireType::kFp16};
  options.top_k = top_k;
  options.experts = experts;
  options.dropped_routes = true;
  options.seed = static_cast<uint64_t>(hidden) * 100 + static_cast<uint64_t>(top_k);
  return options;
}

class Shapes : public ::testing::TestWithParam<int> {};

TEST_P(Shapes, RowsOfPartialWarpsAndTheLongest) {
  std::vector<InputOptions> launches;
  int top_k = GetParam();
  for (int hidden : {1344, 2688, 2880, 3584, 16376, 16384}) {
    launches.push_back(Launch(3, hidden, top_k, top_k));
    top_k = top_k * 5 % 31 + 1;
  }
  RunAndCompare(GetParam(), launches);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Shapes, ::testing::Values(3, 5, 6, 7));

TEST(MoreShapes, EveryNumberOfRoutes) {
  std::vector<InputOptions> launches;
  for (int top_k = 1; top_k <= 32; ++top_k) {
    launches.push_back(Launch(3, 72, top_k, 3 * top_k));
  }
  RunAndCompare(3, launches);
}

TEST(MoreShapes, ManyTokens) {
  RunAndCompare(3, {Launch(2048, 1344, 1, 2), Launch(2047, 264, 2, 0), Launch(1024, 2688, 1, 1)});
}

}  // namespace
}  // namespace stoker::moe
