#include "base/nccl_status.h"

#include <gtest/gtest.h>

namespace stoker {
namespace {

TEST(NcclStatus, SuccessIsOk) {
  EXPECT_TRUE(NcclStatus(NcclResult::kSuccess, "ncclAllReduce", "").ok());
}

TEST(NcclStatus, KeepsTheKindAndNamesCallResultAndNcclsWords) {
  const absl::Status usage =
      NcclStatus(NcclResult::kInvalidUsage, "ncclCommInitRankConfig", "Duplicate GPU detected");
  EXPECT_EQ(usage.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(usage.message(), "ncclCommInitRankConfig: ncclInvalidUsage (Duplicate GPU detected)");
  EXPECT_EQ(NcclStatus(NcclResult::kRemoteError, "x", "").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(NcclStatus(NcclResult::kSystemError, "x", "").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(NcclStatus(NcclResult::kInvalidArgument, "x", "").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NcclStatus(NcclResult::kInternalError, "x", "").message(), "x: ncclInternalError");
  EXPECT_EQ(NcclStatus(static_cast<NcclResult>(99), "x", "").message(),
            "x: an unknown NCCL result");
}

}  // namespace
}  // namespace stoker
