#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace stoker {
namespace {

TEST(ErrnoStatus, NamesTheCallAndKeepsTheKind) {
  const absl::Status missing = ErrnoStatus(ENOENT, "opening weights.bin");
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("opening weights.bin"), std::string::npos) << missing;
  EXPECT_EQ(ErrnoStatus(ENOSPC, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(EEXIST, "x").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrnoStatus(EACCES, "x").code(), absl::StatusCode::kPermissionDenied);
}

absl::Status FailThenCount(const absl::Status& status, int& evaluations, bool& went_on) {
  STOKER_RETURN_IF_ERROR((++evaluations, status));
  went_on = true;
  return absl::OkStatus();
}

TEST(ReturnIfError, EvaluatesOnceAndReturnsTheErrorAsItIs) {
  for (const absl::Status& status : {absl::OkStatus(), absl::DataLossError("torn")}) {
    int evaluations = 0;
    bool went_on = false;
    EXPECT_EQ(FailThenCount(status, evaluations, went_on), status);
    EXPECT_EQ(evaluations, 1);
    EXPECT_EQ(went_on, status.ok());
  }
}

using MoveOnly = std::unique_ptr<int>;

absl::StatusOr<int> Sum(absl::StatusOr<MoveOnly> a, absl::StatusOr<MoveOnly> b) {
  STOKER_ASSIGN_OR_RETURN(const MoveOnly first, std::move(a));
  MoveOnly second;
  STOKER_ASSIGN_OR_RETURN(second, std::move(b));
  return *first + *second;
}

TEST(AssignOrReturn, MovesTheValueOutOrReturnsTheError) {
  EXPECT_EQ(*Sum(std::make_unique<int>(2), std::make_unique<int>(3)), 5);
  EXPECT_EQ(Sum(absl::NotFoundError("a"), std::make_unique<int>(3)).status(),
            absl::NotFoundError("a"));
  EXPECT_EQ(Sum(std::make_unique<int>(2), absl::NotFoundError("b")).status(),
            absl::NotFoundError("b"));
}

}  // namespace
}  // namespace stoker
