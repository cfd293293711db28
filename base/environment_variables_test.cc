#include "base/environment_variables.h"

#include <gtest/gtest.h>

#include <string>

namespace stoker {
namespace {

absl::StatusOr<EnvironmentVariables> ReadWithTimeout(const char* value) {
  return EnvironmentVariables::Read([value](const char* name) {
    return std::string(name) == "STOKER_TIMEOUT_MS" ? value : nullptr;
  });
}

TEST(EnvironmentVariables, UnsetAndEmptyMeanTheDefault) {
  EXPECT_FALSE(ReadWithTimeout(nullptr)->timeout_ms.has_value());
  EXPECT_FALSE(ReadWithTimeout("")->timeout_ms.has_value());
}

TEST(EnvironmentVariables, LimitsAreInclusive) {
  EXPECT_EQ(*ReadWithTimeout("1")->timeout_ms, 1);
  EXPECT_EQ(*ReadWithTimeout("86400000")->timeout_ms, 86400000);
}

class BadTimeout : public testing::TestWithParam<const char*> {};

TEST_P(BadTimeout, NamesVariableValueAndLimit) {
  const absl::Status status = ReadWithTimeout(GetParam()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"STOKER_TIMEOUT_MS", GetParam(), "86400000"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(Values, BadTimeout,
                         testing::Values("0", "-1", "86400001", "20s", "1e3", "inf",
                                         "99999999999999999999"));

TEST(EnvironmentVariables, TheTableNamesEveryVariable) {
  EXPECT_NE(EnvironmentVariables::Table().find("STOKER_TIMEOUT_MS"), std::string::npos);
}

}  // namespace
}  // namespace stoker
