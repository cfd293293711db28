#include "comm/group.h"

#include <gtest/gtest.h>

namespace stoker::comm {
namespace {

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
