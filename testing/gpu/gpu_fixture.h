// What the GPU tests share: a world of stream ranks with uploaded inputs, launching, and comparing.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "moe/fused_cuda.h"
#include "testing/comparers.h"
#include "testing/inputs.h"
#include "testing/stream_world.h"

#define STOKER_ASSERT_OK(expr)            \
  do {                                    \
    const absl::Status status_ = (expr);  \
    ASSERT_TRUE(status_.ok()) << status_; \
  } while (false)

namespace stoker::testing {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU";
  }
};

inline comm::GroupOptions GpuGroup(int capacity, int hidden_max, absl::Duration timeout) {
  comm::GroupOptions options;
  options.capacity = capacity;
  options.hidden_max = hidden_max;
  options.timeout = options.startup_timeout = timeout;
  return options;
}

// Inputs of all ranks, on host and device.
struct RankData {
  std::vector<Inputs> host;
  std::vector<DeviceInputs> device;
};

inline absl::StatusOr<std::vector<DeviceInputs>> Upload(const std::vector<Inputs>& host,
                                                        const moe::Shape& shape) {
  std::vector<DeviceInputs> ranks;
  for (const Inputs& in : host) {
    STOKER_ASSIGN_OR_RETURN(DeviceInputs device, DeviceInputs::Upload(in, shape));
    ranks.push_back(std::move(device));
  }
  return ranks;
}

inline absl::StatusOr<RankData> UploadAll(const InputOptions& options, int world) {
  RankData data;
  data.host = MakeAllInputs(options, world);
  STOKER_ASSIGN_OR_RETURN(data.device, Upload(data.host, options.shape));
  return data;
}

inline absl::Status LaunchAll(StreamWorld& world, const moe::Shape& shape,
                              const std::vector<DeviceInputs>& device,
                              const moe::LaunchOptions& options) {
  for (int rank = 0; rank < world.world(); ++rank) {
    STOKER_RETURN_IF_ERROR(
        moe::MoeFinalizeAllReduceRmsNorm(world.communicator(rank), shape, device[rank].finalize(),
                                         device[rank].norm(), options, world.stream(rank)));
  }
  return absl::OkStatus();
}

inline absl::Status LaunchReductions(StreamWorld& world, const moe::Shape& shape,
                                     const std::vector<DeviceInputs>& device,
                                     const moe::LaunchOptions& options) {
  for (int rank = 0; rank < world.world(); ++rank) {
    STOKER_RETURN_IF_ERROR(
        moe::MoeReduceAllReduceRmsNorm(world.communicator(rank), shape, device[rank].reduction(),
                                       device[rank].norm(), options, world.stream(rank)));
  }
  return absl::OkStatus();
}

// Empty if every rank has exactly the expected bits.
inline std::string Differences(const moe::Shape& shape, const moe::NormResult& expected,
                               const std::vector<DeviceInputs>& device) {
  for (size_t rank = 0; rank < device.size(); ++rank) {
    auto actual = device[rank].Download();
    if (!actual.ok()) return actual.status().ToString();
    const std::string residual =
        DifferenceInBits(shape, expected.residual_out, actual->residual_out);
    if (!residual.empty()) return absl::StrCat("residual_out of rank ", rank, ": ", residual);
    const std::string norm = DifferenceInBits(shape, expected.norm_out, actual->norm_out);
    if (!norm.empty()) return absl::StrCat("norm_out of rank ", rank, ": ", norm);
  }
  return "";
}

}  // namespace stoker::testing
