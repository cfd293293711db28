#include "base/cuda_status.h"

#include <gtest/gtest.h>

#include <string>

namespace stoker {
namespace {

TEST(CudaStatus, SuccessIsOk) { EXPECT_TRUE(CudaStatus(cudaSuccess, "cudaMalloc(...)").ok()); }

struct Case {
  cudaError_t error;
  absl::StatusCode code;
  const char* name;
};

class CudaErrors : public testing::TestWithParam<Case> {};

TEST_P(CudaErrors, KeepTheirKindAndNameTheCall) {
  const absl::Status status = CudaStatus(GetParam().error, "cudaMalloc(&p, 64)");
  EXPECT_EQ(status.code(), GetParam().code);
  EXPECT_NE(status.message().find("cudaMalloc(&p, 64)"), std::string::npos) << status;
  EXPECT_NE(status.message().find(GetParam().name), std::string::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaErrors,
    testing::Values(
        Case{cudaErrorMemoryAllocation, absl::StatusCode::kResourceExhausted,
             "cudaErrorMemoryAllocation"},
        Case{cudaErrorNoDevice, absl::StatusCode::kUnavailable, "cudaErrorNoDevice"},
        Case{cudaErrorInsufficientDriver, absl::StatusCode::kUnavailable,
             "cudaErrorInsufficientDriver"},
        Case{cudaErrorInvalidValue, absl::StatusCode::kInvalidArgument, "cudaErrorInvalidValue"},
        Case{cudaErrorLaunchFailure, absl::StatusCode::kInternal, "cudaErrorLaunchFailure"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace stoker
