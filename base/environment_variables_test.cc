#include "base/environment_variables.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(EnvironmentVariables, TheKernelIsPassedOnAsItIs) {
  const auto read = [](const char* value) {
    return EnvironmentVariables::Read([value](const char* name) {
      return std::string(name) == "STOKER_CPU_KERNEL" ? value : nullptr;
    });
  };
  EXPECT_EQ(read(nullptr)->cpu_kernel, "");
  EXPECT_EQ(read("avx2")->cpu_kernel, "avx2");
}

TEST(EnvironmentVariables, WhatIsReadHasARow) {
  std::vector<std::string> asked;
  const auto read = EnvironmentVariables::Read([&asked](const char* name) -> const char* {
    asked.push_back(name);
    return nullptr;
  });
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(asked.size(), EnvironmentVariables::Rows().size());
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(asked[i], EnvironmentVariables::Rows()[i].name);
    EXPECT_NE(EnvironmentVariables::Table().find(asked[i]), std::string::npos);
  }
}

}  // namespace
}  // namespace stoker
