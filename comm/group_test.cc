#include "comm/group.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/rank_exchange.h"

namespace stoker::comm {
namespace {

// Options out of range are refused before any rank is met.
class NobodyThere : public RankExchange {
 public:
  explicit NobodyThere(int world) : world_(world) {}
  int rank() const override { return 0; }
  int world() const override { return world_; }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view, absl::string_view,
                                                     absl::Duration) override {
    return absl::UnavailableError("nobody there");
  }

 private:
  int world_;
};

std::string Refusal(const std::function<void(GroupOptions&)>& spoil, int world = 2) {
  GroupOptions options;
  spoil(options);
  NobodyThere exchange(world);
  return std::string(AgreeOnPlan(options, {}, exchange).status().message());
}

TEST(Options, EachOneOutOfRangeIsNamedWithItsLimitAndARemedy) {
  EXPECT_EQ(Refusal([](GroupOptions&) {}), "nobody there");
  EXPECT_EQ(Refusal([](GroupOptions&) {}, 9),
            "world size 9: 1 to 8 ranks are supported; use NCCL for larger groups");
  EXPECT_EQ(Refusal([](GroupOptions& o) { o.name = "a/b"; }),
            "group name \"a/b\" must have 1 to 40 characters of [a-zA-Z0-9_-]; choose another");
  for (int32_t capacity : {-1, 0, 65537}) {
    EXPECT_EQ(Refusal([=](GroupOptions& o) { o.capacity = capacity; }),
              "capacity " + std::to_string(capacity) +
                  ": 1 to 65536 tokens are supported; larger calls go through NCCL");
  }
  for (int32_t hidden : {0, 12, 16392}) {
    EXPECT_EQ(Refusal([=](GroupOptions& o) { o.hidden_max = hidden; }),
              "largest hidden size " + std::to_string(hidden) +
                  ": a multiple of 8 from 8 to 16384 is supported; round it up");
  }
  for (int32_t tokens : {-1, (1 << 20) + 1}) {
    EXPECT_EQ(Refusal([=](GroupOptions& o) { o.nccl_tokens_max = tokens; }),
              "most tokens through NCCL " + std::to_string(tokens) +
                  ": 0 (none) to 1048576 are supported; split larger calls");
  }
  EXPECT_EQ(Refusal([](GroupOptions& o) { o.setup_timeout = absl::ZeroDuration(); }),
            "set-up timeout of 0: 1 ms to 24 h are supported; a minute is the default");
  EXPECT_EQ(Refusal([](GroupOptions& o) { o.setup_timeout = absl::Hours(25); }),
            "set-up timeout of 25h: 1 ms to 24 h are supported; a minute is the default");
  for (const auto field : {&GroupOptions::timeout, &GroupOptions::startup_timeout}) {
    EXPECT_EQ(
        Refusal([=](GroupOptions& o) { o.*field = absl::Hours(25); }),
        "timeout of 90000000 ms: 1 to 86400000 (24 h) are supported; leave it out for the default");
    EXPECT_EQ(Refusal([=](GroupOptions& o) { o.*field = absl::Microseconds(1); }).substr(0, 15),
              "timeout of 0 ms");
  }
}

GroupPlan PlanOf(int32_t capacity, int32_t stride) {
  GroupPlan plan;
  plan.world = 2;
  plan.layout.world = 2;
  plan.layout.capacity = capacity;
  plan.layout.stride = stride;
  return plan;
}

bool Names(const absl::Status& status, const char* words) {
  return status.code() == absl::StatusCode::kFailedPrecondition &&
         status.message().find(words) != absl::string_view::npos;
}

TEST(WorkspaceHeader, OfTheSamePlanAndGenerationIsAccepted) {
  const GroupPlan plan = PlanOf(128, 896);
  EXPECT_TRUE(
      CheckControl(MakeControl(plan, Epoch(2), Generation(5)), plan, Generation(5), 1).ok());
}

TEST(WorkspaceHeader, OfAnotherGroupIsRefusedWithBothValues) {
  const GroupPlan plan = PlanOf(128, 896);
  for (const GroupPlan& other : {PlanOf(64, 896), PlanOf(128, 512)}) {
    EXPECT_TRUE(
        Names(CheckControl(MakeControl(other, Epoch(2), Generation(0)), plan, Generation(0), 1),
              other.layout.capacity == 64 ? "capacity 64, stride 896, generation 0; "
                                            "expected 128, 896, 0"
                                          : "capacity 128, stride 512"));
  }
  EXPECT_TRUE(
      Names(CheckControl(MakeControl(plan, Epoch(2), Generation(0)), plan, Generation(1), 1),
            "generation 0"));
}

TEST(WorkspaceHeader, MemoryWithoutOneIsRefused) {
  EXPECT_TRUE(
      Names(CheckControl(Control{}, PlanOf(128, 896), Generation(0), 1), "starts with 0 where"));
}

}  // namespace
}  // namespace stoker::comm
